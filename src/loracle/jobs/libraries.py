"""Whether the training libraries are installed, without importing any of them."""

from importlib.util import find_spec

NEEDED = ("torch", "transformers", "peft", "trl", "bitsandbytes", "accelerate")


def missing_library() -> str | None:
    """The first library that training and the dry run need and this environment lacks, or None."""
    return next((name for name in NEEDED if find_spec(name) is None), None)
