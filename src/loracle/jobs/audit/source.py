"""Where an audit gets its answers from: one protocol for the live machine and for a recording.

Four kinds of question cover everything: NVML getters, small text files under /proc and /sys,
facts of the process (which known environment variables are set, what a binary is), and probes
that run work and return series. A source may refuse any of them; a refusal is an answer and
turns into `unknown`, never into a fault.
"""

from collections.abc import Mapping
from typing import Any, Protocol

REASONS = (
    "NotSupported",  # the card or driver has no such thing
    "FunctionNotFound",  # the driver is older than the question
    "NoPermission",
    "GpuIsLost",  # NVML 15, Xid 79
    "NotFound",  # no such file, library or device
    "DriverNotLoaded",
    "LibraryMismatch",  # driver updated under a running container
    "Unknown",  # NVML 999: device access lost
    "CudaError",
    "OutOfMemory",
    "Timeout",
    "NotInstalled",
    "Failed",
)


class Refused(Exception):
    """A source that cannot answer: one of REASONS, and the words it came with."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class Source(Protocol):
    """Everything that an audit may ask a machine."""

    def nvml(self, key: str, device: int | None = None) -> Any:
        """The plain value of one NVML getter (a key of `nvml.GETTERS`)."""

    def read(self, path: str) -> str:
        """The text of a small file."""

    def fact(self, key: str) -> Any:
        """A fact of this process or container (a key of `facts.FACTS`)."""

    def probe(self, name: str, device: int | None = None, **options: Any) -> Mapping[str, Any]:
        """The outcome of one probe (a key of `probes.PROBES`); columns and numbers."""
