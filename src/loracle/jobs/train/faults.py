"""What a failure was about: no memory on the card, or a disk that does not take what is written."""

import torch

_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Every spelling of it: the allocator's, the driver's, cuBLAS's and cuDNN's."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)
    )


def is_disk_fault(error: BaseException) -> bool:
    """Whether writing failed: by the OS, by torch's file writer or by safetensors."""
    text = str(error).lower()
    writer = "writing file" in text or "inline_container" in text or "i/o error" in text
    return isinstance(error, OSError) or writer or "iostream" in text
