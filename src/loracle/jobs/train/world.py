"""Which of the training processes this one is, and what signals ask of it."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

Answer = TypeVar("Answer")


def is_main() -> bool:
    """Whether this is the process that writes."""
    return os.environ.get("RANK", "0") == "0"


def world_size() -> int:
    """Processes of this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def parallel() -> str:
    """How the processes share the model: none, ddp, or fsdp where the launcher asks for it.

    Accelerate's FSDP needs cards: asked for without any, it falls back to DDP and does not say so.
    """
    if world_size() == 1:
        return "none"
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() != "true":
        return "ddp"
    import torch

    return "fsdp" if torch.cuda.is_available() else "ddp"


def local_rank() -> int:
    """Which card of the machine is this process's."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def from_main(ask: Callable[[], Answer]) -> Answer:
    """The main process's answer, told to all; the others wait for it."""
    if world_size() == 1:
        return ask()
    import torch
    from accelerate import PartialState

    PartialState()
    said = [ask() if is_main() else None]
    torch.distributed.broadcast_object_list(said, src=0)
    return said[0]


@contextlib.contextmanager
def signals_ask(ask: Callable[[str], None]) -> Iterator[None]:
    """SIGTERM (a spot machine is reclaimed) and SIGINT ask the run to save and end, meanwhile."""
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: ask("terminated")),
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: ask("stop")),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
