"""What NVML tells of the card while it trains, sampled beside the training, averaged per step."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

INTERVAL_SECONDS = 0.5
# NVML's clocks event reasons. The software power cap (0x4) is no fault: a card at full load runs
# into it; the power brake (0x80) is pulled by a failing or too small supply.
_THERMAL, _POWER, _HARDWARE = 0x20 | 0x40, 0x80, 0x8


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """Means over the samples of a step; None where the driver does not say."""

    use: float | None = None  # 0..1
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_hz: float | None = None
    throttled: str | None = None
    ecc_errors: int = 0
    xid: int | None = None
    foreign_bytes: int = 0
    used_bytes: int | None = None


@dataclass
class _Samples:
    use: list[float] = field(default_factory=list)
    power: list[float] = field(default_factory=list)
    temperature: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    reasons: list[int] = field(default_factory=list)
    foreign_bytes: int = 0
    used_bytes: int | None = None
    ecc_errors: int = 0
    xid: int | None = None


class CardWatcher:
    """A thread that samples one card; `take` returns what was seen since the last call."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        self._card = pynvml.nvmlDeviceGetHandleByUUID(name)
        self._reasons: Callable[[Any], int] = getattr(
            pynvml,
            "nvmlDeviceGetCurrentClocksEventReasons",
            pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,  # its name before driver 535
        )
        self._ecc_before = self._ecc()
        self._events = self._xid_events()
        self._lock = threading.Lock()
        self._samples = _Samples()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True, name="card")
        self._thread.start()

    def take(self) -> CardState:
        """Means since the last call."""
        with self._lock:
            seen, self._samples = self._samples, _Samples()
        mean = _mean
        return CardState(
            use=mean(seen.use),
            power_w=mean(seen.power),
            temperature_c=mean(seen.temperature),
            sm_clock_hz=mean(seen.clock),
            throttled=_cause(seen.reasons),
            ecc_errors=seen.ecc_errors,
            xid=seen.xid,
            foreign_bytes=seen.foreign_bytes,
            used_bytes=seen.used_bytes,
        )

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join(timeout=2)

    def _loop(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS):
            with self._lock:
                self._sample(self._samples)

    def _sample(self, into: _Samples) -> None:
        nvml, card = self._nvml, self._card
        with _where_supported(nvml):
            into.use.append(nvml.nvmlDeviceGetUtilizationRates(card).gpu / 100)
        with _where_supported(nvml):
            into.power.append(nvml.nvmlDeviceGetPowerUsage(card) / 1000)
        with _where_supported(nvml):
            into.temperature.append(nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU))
        with _where_supported(nvml):
            clock = nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)
            into.clock.append(clock * 1e6)
        with _where_supported(nvml):
            into.reasons.append(self._reasons(card))
        with _where_supported(nvml):
            into.used_bytes = int(nvml.nvmlDeviceGetMemoryInfo(card).used)
        with _where_supported(nvml):
            into.foreign_bytes = self._foreign_bytes()
        into.ecc_errors = max(0, self._ecc() - self._ecc_before)
        into.xid = self._next_xid() or into.xid

    def _foreign_bytes(self) -> int:
        """Memory of compute processes that are not ours; in a container they may be unseen."""
        ours = os.getpid()
        running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._card)
        seen = {one.pid: one.usedGpuMemory or 0 for one in running}
        return sum(size for pid, size in seen.items() if pid != ours) if ours in seen else 0

    def _ecc(self) -> int:
        nvml = self._nvml
        with _where_supported(nvml):
            return int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    self._card,
                    nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                    nvml.NVML_VOLATILE_ECC,
                )
            )
        return 0

    def _xid_events(self) -> Any:
        nvml = self._nvml
        with _where_supported(nvml):
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._card, nvml.nvmlEventTypeXidCriticalError, events)
            return events
        return None

    def _next_xid(self) -> int | None:
        if self._events is None:
            return None
        try:
            return int(self._nvml.nvmlEventSetWait_v2(self._events, 1).eventData)
        except self._nvml.NVMLError:  # a timeout is the normal case
            return None


def card_watcher() -> CardWatcher | None:
    """A watcher of this process's card; None without a card, the binding or a willing driver."""
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        return CardWatcher(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    except pynvml.NVMLError:
        return None


@contextlib.contextmanager
def _where_supported(nvml: Any) -> Iterator[None]:
    """Skip what this card or driver does not answer; each reading stands alone."""
    with contextlib.suppress(nvml.NVMLError):
        yield


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _cause(reasons: list[int]) -> str | None:
    """What held the clock down in at least half of the samples."""
    for name, mask in (("thermal", _THERMAL), ("power", _POWER), ("hardware", _HARDWARE)):
        if reasons and sum(bool(one & mask) for one in reasons) * 2 >= len(reasons):
            return name
    return None
