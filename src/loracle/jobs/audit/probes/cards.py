"""What CUDA, by way of torch, says of the machine: versions, and each card's properties."""

import importlib.metadata
import platform
import re
from typing import Any

from loracle.jobs.audit.nvml import digest
from loracle.jobs.audit.probes.work import first_line
from loracle.jobs.audit.source import Refused

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PACKAGES = ("transformers", "peft", "trl", "accelerate", "bitsandbytes", "flash-attn", "triton")


def cuda() -> dict[str, Any]:
    """Versions, whether CUDA starts, and the properties of every card that it shows.

    `ordinal` is CUDA's number of a card; `index`, NVML's, is filled in by the caller.
    """
    try:
        import torch
    except (ImportError, OSError) as error:
        raise Refused("NotInstalled", first_line(error)) from error
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "packages": _packages(),
        "arch_list": [],
        "available": False,
        "error": "",
        "devices": [],
    }
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return found | {"error": first_line(error)}
    found["arch_list"] = torch.cuda.get_arch_list()
    found["available"] = torch.cuda.is_available()
    found["devices"] = [_properties(ordinal) for ordinal in range(torch.cuda.device_count())]
    return found


def _packages() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _properties(ordinal: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(ordinal)
    uuid = str(getattr(properties, "uuid", "")).lower()
    return {
        "ordinal": ordinal,
        "index": ordinal,
        "name": properties.name,
        "num_sms": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "total_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "bus_id": _bus_id(properties),
        "uuid_hash": digest(f"GPU-{uuid}") if _UUID.fullmatch(uuid) else None,
    }


def _bus_id(properties: Any) -> str | None:
    if not hasattr(properties, "pci_bus_id"):
        return None
    domain = getattr(properties, "pci_domain_id", 0)
    device = getattr(properties, "pci_device_id", 0)
    return f"{domain:04x}:{properties.pci_bus_id:02x}:{device:02x}.0"


def peers(ordinals: list[int]) -> dict[str, Any]:
    """Copies between every two cards, with their content checked."""
    return {"pairs": [_peer(one, other) for one in ordinals for other in ordinals if one != other]}


def _peer(source: int, target: int) -> dict[str, Any]:
    import torch

    count = 64 * 2**20
    sent = torch.arange(count, dtype=torch.int32, device=f"cuda:{source}")
    arrived = torch.zeros(count, dtype=torch.int32, device=f"cuda:{target}")
    arrived.copy_(sent)
    torch.cuda.synchronize(source)
    with torch.cuda.device(source):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(4):
            arrived.copy_(sent, non_blocking=True)
        stop.record()
        stop.synchronize()
    torch.cuda.synchronize(target)
    wrong = int((arrived.cpu() != torch.arange(count, dtype=torch.int32)).sum())
    return {
        "source": source,
        "target": target,
        "reported": bool(torch.cuda.can_device_access_peer(source, target)),
        "bytes_per_s": 4 * 4 * count / (start.elapsed_time(stop) / 1000),
        "mismatched": wrong,
    }
