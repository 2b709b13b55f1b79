"""The machine itself as a source: NVML, torch, /proc, /sys, and the probes.

Errors of any of them become refusals: a driver that dies halfway, a library that is not there,
memory that cannot be had. The card's state is only ever read.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from loracle.jobs.audit.nvml import Nvml
from loracle.jobs.audit.probes import cards, host, pattern, soak, software, storage, work
from loracle.jobs.audit.source import Refused
from loracle.units import MIB

# what one sample of a card holds: our name, the getter, and what to multiply with
_SAMPLED = {
    "used_bytes": ("memory", "used_bytes", 1.0),
    "gpu_percent": ("utilisation", "gpu_percent", 1.0),
    "memory_percent": ("utilisation", "memory_percent", 1.0),
    "watts": ("power_mw", None, 0.001),
    "sm_mhz": ("sm_mhz", None, 1.0),
    "events": ("events", None, 1.0),
}
_SHARED_BYTES, _SHARED_SHARE = 512 * MIB, 0.05


class Live:
    """Answers from this machine (the `Source` protocol). Use as a context manager."""

    def __init__(
        self, *, quick: bool = False, output_folder: str = ".", nvml_module: Any = None
    ) -> None:
        self._pace = 0.35 if quick else 1.0  # of the usual length of each probe of one card
        self._folder = output_folder
        self._started = time.monotonic()
        self._started_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._cpu = host.CpuTimes()
        self._ordinals: dict[int, int] = {}
        self._dtypes: dict[int, str] = {}
        self._used_before: dict[int, int] = {}
        self._refusal: Refused | None = None
        self._nvml: Nvml | None = None
        try:
            self._nvml = Nvml(nvml_module)
        except Refused as refusal:
            self._refusal = refusal

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvml is not None:
            try:
                self._nvml.close()
            except Refused:
                return  # the driver went away before we did

    def nvml(self, key: str, device: int | None = None) -> Any:
        """One NVML getter on this machine."""
        if self._nvml is None:
            raise self._refusal or Refused("NotFound", key)
        return self._nvml.get(key, device)

    def read(self, path: str) -> str:
        """A file of this machine, UUIDs hashed."""
        if path.startswith("/proc/driver/nvidia/gpus//") or "/devices//" in path:
            raise Refused("NotFound", path)
        return host.read_text(path)

    def fact(self, key: str) -> Any:
        """A fact of this process, container or host."""
        facts: dict[str, Callable[[], Any]] = {
            "host": lambda: host.host(self._cpu),
            "disks": lambda: host.disks(self._folder),
            "paths": host.paths,
            "mounts": host.mounts,
            "run": lambda: {
                "started_at": self._started_at,
                "seconds": round(time.monotonic() - self._started, 1),
            },
        }
        return facts[key]()

    def probe(self, name: str, device: int | None = None, **options: Any) -> Mapping[str, Any]:
        """Run one probe; what it raises becomes a refusal, and its memory is given back."""
        probes: dict[str, Callable[..., Any]] = {
            "idle": self._idle, "cuda": self._cuda, "software": software.software,
            "kernel": self._kernel, "timing": self._timing, "gemm": self._gemm,
            "bandwidth": self._bandwidth, "copies": self._copies, "pattern": self._pattern,
            "together": self._together, "soak": self._soak, "peers": self._peers,
            "after": self._after, "disk": self._disk, "network": storage.network,
        }  # fmt: skip
        arguments = () if device is None else (device,)
        try:
            return probes[name](*arguments, **options)
        except Refused:
            raise
        except (RuntimeError, AssertionError, ImportError, OSError) as error:
            reason = "OutOfMemory" if "out of memory" in str(error).lower() else "CudaError"
            if isinstance(error, ImportError | OSError):
                reason = "NotInstalled" if isinstance(error, ImportError) else "Failed"
            raise Refused(reason, work.first_line(error)) from error
        finally:
            self._give_back(name)

    def _give_back(self, name: str) -> None:
        if name in ("gemm", "bandwidth", "copies", "timing", "together", "soak", "peers"):
            try:
                work.free()
            except RuntimeError:
                return  # a lost device has nothing to give back

    def _sample(self, device: int) -> dict[str, float | None]:
        """One NVML sample; None for what the card will not tell; a lost card raises."""
        answers: dict[str, Any] = {}
        values: dict[str, float | None] = {}
        for name, (key, part, factor) in _SAMPLED.items():
            if key not in answers:
                answers[key] = self._soft(key, device)
            value = answers[key]
            value = value.get(part) if part and isinstance(value, Mapping) else value
            values[name] = value * factor if isinstance(value, int | float) else None
        values["celsius"] = self._soft("celsius", device)
        return values

    def _soft(self, key: str, device: int) -> Any:
        try:
            return self.nvml(key, device)
        except Refused as refusal:
            if refusal.reason == "GpuIsLost":
                raise
            return None

    def _load_sample(self, device: int) -> dict[str, Any]:
        """A sample with the memory temperature, for the soak."""
        values: dict[str, Any] = self._sample(device)
        try:
            fields = self._nvml.fields(device) if self._nvml else {}
        except Refused:
            fields = {}
        values["memory_celsius"] = fields.get("memory_celsius") or None
        return values

    def _idle(self, seconds: float) -> dict[str, Any]:
        """Samples twice a second of every card, before CUDA starts in this process."""
        count = self.nvml("device_count")
        columns: dict[int, dict[str, list[float | None]]] = {
            index: {name: [] for name in _SAMPLED} for index in range(count)
        }
        end = time.monotonic() + seconds
        while True:
            for index, column in columns.items():
                values = self._sample(index)
                for name in _SAMPLED:
                    column[name].append(values[name])
            if time.monotonic() >= end:
                break
            time.sleep(0.5)
        for index, column in columns.items():
            used = [value for value in column["used_bytes"] if value is not None]
            self._used_before[index] = int(max(used, default=0))
        return {"devices": {str(index): column for index, column in columns.items()}}

    def _cuda(self) -> dict[str, Any]:
        found = cards.cuda()
        self._pace *= min(1.0, 2 / max(1, len(found["devices"])))  # several cards add up
        for device in found["devices"]:
            device["index"] = self._index_of(device)
            self._ordinals[device["index"]] = device.pop("ordinal")
            major = int(device["compute_capability"].split(".")[0])
            self._dtypes[device["index"]] = (
                "bfloat16" if major >= 8 else "float16" if major >= 7 else "float32"
            )
        return found

    def _index_of(self, device: Mapping[str, Any]) -> int:
        """NVML's number of a CUDA device, by UUID or PCI address; CUDA's own where neither fits."""
        try:
            count = self.nvml("device_count")
        except Refused:
            return int(device["ordinal"])
        for index in range(count):
            if device["uuid_hash"] and self._soft("uuid_hash", index) == device["uuid_hash"]:
                return index
            pci = self._soft("pci", index)
            if device["bus_id"] and pci and pci["bus_id"].endswith(device["bus_id"]):
                return index
        return int(device["ordinal"])

    def _kernel(self, device: int) -> dict[str, Any]:
        before = self._used_before.get(device)
        answer = work.kernel(self._ordinals[device])
        memory = self._soft("memory", device)
        if answer["runs"] and before is not None and memory:
            answer["context_bytes"] = max(0, memory["used_bytes"] - before)
        return answer

    def _timing(self, device: int) -> dict[str, Any]:
        def sample() -> dict[str, Any]:
            values: dict[str, Any] = self._sample(device)
            return values | {"max_sm_mhz": self._soft("max_sm_mhz", device)}

        rounds = 3 if self._pace == 1.0 else 1
        launches = max(300, round(3000 * self._pace))
        return work.timing(self._ordinals[device], sample, launches=launches, rounds=rounds)

    def _gemm(self, device: int, dtype: str) -> dict[str, Any]:
        main = dtype == self._dtypes[device]
        bursts = max(2, round((8 if main else 3) * self._pace))
        return work.gemm(self._ordinals[device], dtype, bursts=bursts)

    def _bandwidth(self, device: int) -> dict[str, Any]:
        return work.bandwidth(self._ordinals[device], seconds=max(0.3, 1.5 * self._pace))

    def _copies(self, device: int) -> dict[str, Any]:
        def link() -> dict[str, Any]:
            return {
                "generation": self._soft("pcie_generation", device),
                "lanes": self._soft("pcie_lanes", device),
            }

        return work.copies(self._ordinals[device], link, seconds=max(0.3, 1.5 * self._pace))

    def _pattern(self, device: int) -> dict[str, Any]:
        memory = self._soft("memory", device)
        total = memory["total_bytes"] if memory else 0
        shared = self._used_before.get(device, 0) > max(_SHARED_BYTES, _SHARED_SHARE * total)
        return pattern.pattern(self._ordinals[device], shared=shared)

    def _together(self) -> dict[str, Any]:
        return soak.together(self._ordinals, self._dtypes, seconds=max(0.75, 3.0 * self._pace))

    def _soak(self, seconds: float) -> dict[str, Any]:
        limits = {
            index: {
                "slowdown_celsius": self._soft("slowdown_celsius", index),
                "memory_max_celsius": self._soft("memory_max_celsius", index),
            }
            for index in self._ordinals
        }
        refused = None
        try:
            if self._nvml is None:
                raise self._refusal or Refused("NotFound", "nvml")
            self._nvml.watch_xids(range(self.nvml("device_count")))
        except Refused as refusal:
            refused = refusal.reason
        found = soak.soak(
            self._ordinals, self._dtypes, self._load_sample,
            self._nvml.xids if self._nvml else list, limits, seconds=seconds,
        )  # fmt: skip
        return found | ({"xids_refused": refused} if refused else {})

    def _peers(self) -> dict[str, Any]:
        return cards.peers(sorted(self._ordinals.values()))

    def _after(self, device: int) -> dict[str, Any]:
        """The counters that must not have grown, read again; and NVLinks that are up."""
        keys = ("ecc_uncorrected", "ecc_corrected", "pcie_replays", "remapped_rows")
        after: dict[str, Any] = {key: self._soft(key, device) for key in keys}
        if self._nvml is not None:
            try:
                after |= self._nvml.fields(device)
            except Refused as refusal:
                if refusal.reason == "GpuIsLost":
                    raise
            try:
                after["nvlinks"] = self._nvml.active_nvlinks(device)
            except Refused:
                after["nvlinks"] = None
        return {key: value for key, value in after.items() if value is not None}

    def _disk(self, folder: str) -> dict[str, float]:
        return storage.disk(folder, 1024 * MIB if self._pace == 1.0 else 256 * MIB)
