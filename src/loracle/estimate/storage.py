"""Bytes on disk and on the wire: downloads, checkpoints, merged models, and the time they take."""

from loracle.domain.estimate import Range
from loracle.domain.model import ModelShape
from loracle.domain.setup import TrainingSetup
from loracle.estimate.params import trained

_STATE_BYTES = {  # optimizer state, bytes a trained parameter
    "adamw_torch": 8.0, "adamw_torch_fused": 8.0, "adamw_8bit": 2.03, "paged_adamw_8bit": 2.03,
    "paged_adamw_32bit": 8.0, "sgd": 0.0,
}  # fmt: skip
_SIDE_FILES_BYTES = 15_000_000  # tokenizer, config, trainer state, random states, schedule


def download_bytes(shape: ModelShape) -> int:
    """Bytes of a model's 16-bit checkpoint with its tokenizer: what a fresh machine fetches.

    Quantised training downloads the 16-bit weights too, and packs them while it loads.
    """
    return 2 * shape.num_params + _SIDE_FILES_BYTES


def adapter_bytes(setup: TrainingSetup) -> int:
    """Bytes of the saved adapter, in its own dtype; of all weights at 16 bits in full training."""
    params, _ = trained(setup)
    wide = 4 if setup.lora is not None and setup.lora.dtype == "float32" else 2
    return params * (2 if setup.method == "full" else wide)


def checkpoint_bytes(setup: TrainingSetup) -> int:
    """Bytes of one checkpoint to resume from: what is trained, its optimizer state, side files."""
    params, _ = trained(setup)
    state = round(params * _STATE_BYTES[setup.optimizer])
    if setup.method == "full" and setup.optimizer.startswith("adamw_torch"):
        state //= 2  # torch keeps the states in the parameters' own 16-bit dtype
    return adapter_bytes(setup) + state + _SIDE_FILES_BYTES


def merged_bytes(shape: ModelShape) -> int:
    """Bytes of the merged 16-bit model."""
    return 2 * shape.num_params + _SIDE_FILES_BYTES


def transfer_seconds(num_bytes: float, bytes_per_s: Range) -> Range:
    """Time to read, write, download or copy so many bytes at a bandwidth that is a range."""
    return bytes_per_s.inverse(num_bytes)
