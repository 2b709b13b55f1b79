"""The card that a bench runs on: its row of the catalog, and its readings while it works."""

import contextlib

from loracle.catalog.fingerprints import by_device_id, by_driver_name
from loracle.catalog.gpus import find_gpu
from loracle.domain.gpu import Gpu
from loracle.errors import NoCard
from loracle.jobs.audit.nvml import Nvml
from loracle.jobs.audit.source import Refused


def card_here() -> Gpu:
    """The catalog's row of the card that torch uses.

    Raises NoCard E072 where torch finds no card, CatalogError E031 for one not in the
    catalog.
    """
    import torch

    if not torch.cuda.is_available():
        raise NoCard("error.no_cuda_bench")
    properties = torch.cuda.get_device_properties(0)
    known = by_driver_name(properties.name, properties.total_memory)
    with contextlib.suppress(Refused):  # then the name has to do
        known = by_device_id(Nvml().get("pci", 0)["device_id"]) or known
    if known is None or not known.gpu_ids:
        return find_gpu(properties.name)
    rows = [find_gpu(one) for one in known.gpu_ids]
    return min(rows, key=lambda gpu: abs(gpu.memory_bytes - properties.total_memory))


def sampler():  # noqa: ANN201 - a function, or None
    """Watts, degrees and used bytes of the first card; None where NVML is not there."""
    try:
        nvml = Nvml()
    except Refused:
        return None

    def sample() -> dict[str, float | None]:
        def ask(key: str) -> float | None:
            try:
                return nvml.get(key, 0)
            except Refused:
                return None

        watts, memory = ask("power_mw"), ask("memory")
        return {
            "watts": watts / 1000 if watts is not None else None,
            "celsius": ask("celsius"),
            "used_bytes": memory["used_bytes"] if isinstance(memory, dict) else None,
        }

    return sample
