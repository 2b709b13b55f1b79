"""NVML, read only: an allow-list of getters and their answers as plain data.

Nothing outside GETTERS and _CALLS can be reached through this file, so no clock, power, MIG,
ECC or persistence setting can be changed by an audit. The deprecated getters (temperature,
throttle reasons, violation status, power state) are not in the list; their successors are.
Units are NVML's own, and the key says which: mw, mhz, celsius, bytes.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from loracle.jobs.audit.source import Refused

_ERRORS = {
    2: "NotSupported", 3: "NotSupported", 4: "NoPermission", 6: "NotFound", 9: "DriverNotLoaded",
    10: "Timeout", 12: "NotFound", 13: "FunctionNotFound", 15: "GpuIsLost",
    18: "LibraryMismatch", 25: "FunctionNotFound", 999: "Unknown",
}  # fmt: skip

_FIELDS = {
    "power_violation_ns": 74, "thermal_violation_ns": 75, "sw_thermal_ns": 269,
    "hw_thermal_ns": 270, "power_brake_ns": 271, "memory_celsius": 82, "recovery_action": 230,
}  # fmt: skip

Call = Callable[..., Any]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def digest(text: str) -> str:
    """A short hash that recognises a serial or UUID without telling it."""
    return hashlib.sha256(b"loracle-audit:" + text.encode()).hexdigest()[:16]


def _pci(info: Any) -> dict[str, object]:
    return {
        "bus_id": _text(info.busId).lower(),
        "device_id": f"{info.pciDeviceId >> 16:04X}",
        "vendor_id": f"{info.pciDeviceId & 0xFFFF:04X}",
        "subsystem_id": f"{info.pciSubSystemId >> 16:04X}",
        "subsystem_vendor": f"{info.pciSubSystemId & 0xFFFF:04X}",
    }


def _memory(info: Any) -> dict[str, int]:
    names = ("total", "reserved", "free", "used")
    return {f"{name}_bytes": int(getattr(info, name)) for name in names if hasattr(info, name)}


def _rows(value: Any) -> dict[str, int]:
    names = ("correctable", "uncorrectable", "pending", "failure")
    return dict(zip(names, (int(one) for one in value), strict=False))


def _attributes(value: Any) -> dict[str, int]:
    return {
        "num_sms": int(value.multiprocessorCount),
        "memory_bytes": int(value.memorySizeMB) * 2**20,
    }


def _licences(value: Any) -> list[dict[str, object]]:
    return [
        {
            "product": _text(value.gridLicensableFeatures[index].productName),
            "licensed": bool(value.gridLicensableFeatures[index].featureEnabled),
        }
        for index in range(int(value.licensableFeaturesCount))
    ]


def _utilisation(value: Any) -> dict[str, int]:
    return {"gpu_percent": int(value.gpu), "memory_percent": int(value.memory)}


# key: (pynvml function, further arguments by constant name or value, how to make it plain)
GETTERS: Mapping[str, tuple[str, tuple[object, ...], Call]] = {
    "driver_version": ("nvmlSystemGetDriverVersion", (), _text),
    "nvml_version": ("nvmlSystemGetNVMLVersion", (), _text),
    "cuda_driver_version": ("nvmlSystemGetCudaDriverVersion_v2", (), int),
    "device_count": ("nvmlDeviceGetCount", (), int),
    "name": ("nvmlDeviceGetName", (), _text),
    "uuid_hash": ("nvmlDeviceGetUUID", (), lambda value: digest(_text(value))),
    "serial_hash": ("nvmlDeviceGetSerial", (), lambda value: digest(_text(value))),
    "board_part_number": ("nvmlDeviceGetBoardPartNumber", (), _text),
    "vbios": ("nvmlDeviceGetVbiosVersion", (), _text),
    "inforom": ("nvmlDeviceGetInforomImageVersion", (), _text),
    "pci": ("nvmlDeviceGetPciInfo_v3", (), _pci),
    "brand": ("nvmlDeviceGetBrand", (), int),
    "architecture": ("nvmlDeviceGetArchitecture", (), int),
    "compute_capability": (
        "nvmlDeviceGetCudaComputeCapability", (), lambda value: f"{value[0]}.{value[1]}"
    ),
    "num_cores": ("nvmlDeviceGetNumGpuCores", (), int),
    "bus_bits": ("nvmlDeviceGetMemoryBusWidth", (), int),
    "memory": ("nvmlDeviceGetMemoryInfo", ("nvmlMemory_v2",), _memory),
    "bar1_bytes": ("nvmlDeviceGetBAR1MemoryInfo", (), lambda value: int(value.bar1Total)),
    "max_sm_mhz": ("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",), int),
    "sm_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",), int),
    "memory_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",), int),
    "events": ("nvmlDeviceGetCurrentClocksEventReasons", (), int),
    "supported_events": ("nvmlDeviceGetSupportedClocksEventReasons", (), int),
    "celsius": ("nvmlDeviceGetTemperatureV", ("NVML_TEMPERATURE_GPU",), int),
    "slowdown_celsius": (
        "nvmlDeviceGetTemperatureThreshold", ("NVML_TEMPERATURE_THRESHOLD_SLOWDOWN",), int
    ),
    "shutdown_celsius": (
        "nvmlDeviceGetTemperatureThreshold", ("NVML_TEMPERATURE_THRESHOLD_SHUTDOWN",), int
    ),
    "memory_max_celsius": (
        "nvmlDeviceGetTemperatureThreshold", ("NVML_TEMPERATURE_THRESHOLD_MEM_MAX",), int
    ),
    "margin_celsius": ("nvmlDeviceGetMarginTemperature", (), int),
    "power_mw": ("nvmlDeviceGetPowerUsage", (), int),
    "power_limit_mw": ("nvmlDeviceGetEnforcedPowerLimit", (), int),
    "power_default_mw": ("nvmlDeviceGetPowerManagementDefaultLimit", (), int),
    "power_range_mw": (
        "nvmlDeviceGetPowerManagementLimitConstraints", (), lambda value: [int(v) for v in value]
    ),
    "power_source": ("nvmlDeviceGetPowerSource", (), int),
    "energy_mj": ("nvmlDeviceGetTotalEnergyConsumption", (), int),
    "performance_state": ("nvmlDeviceGetPerformanceState", (), int),
    "utilisation": ("nvmlDeviceGetUtilizationRates", (), _utilisation),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", (), int),
    "pcie_lanes": ("nvmlDeviceGetCurrPcieLinkWidth", (), int),
    "pcie_max_generation": ("nvmlDeviceGetMaxPcieLinkGeneration", (), int),
    "pcie_max_lanes": ("nvmlDeviceGetMaxPcieLinkWidth", (), int),
    "pcie_card_generation": ("nvmlDeviceGetGpuMaxPcieLinkGeneration", (), int),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter", (), int),
    "ecc_mode": ("nvmlDeviceGetEccMode", (), lambda value: [int(v) for v in value]),
    "ecc_uncorrected": (
        "nvmlDeviceGetTotalEccErrors",
        ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC"),
        int,
    ),
    "ecc_corrected": (
        "nvmlDeviceGetTotalEccErrors",
        ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_VOLATILE_ECC"),
        int,
    ),
    "ecc_uncorrected_lifetime": (
        "nvmlDeviceGetTotalEccErrors",
        ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_AGGREGATE_ECC"),
        int,
    ),
    "retired_single_bit": (
        "nvmlDeviceGetRetiredPages",
        ("NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS",),
        len,
    ),
    "retired_double_bit": (
        "nvmlDeviceGetRetiredPages",
        ("NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR",),
        len,
    ),
    "retired_pending": ("nvmlDeviceGetRetiredPagesPendingStatus", (), int),
    "remapped_rows": ("nvmlDeviceGetRemappedRows", (), _rows),
    "mig_mode": ("nvmlDeviceGetMigMode", (), lambda value: [int(v) for v in value]),
    "mig_part": ("nvmlDeviceGetAttributes_v2", (), _attributes),
    "virtualisation": ("nvmlDeviceGetVirtualizationMode", (), int),
    "licences": ("nvmlDeviceGetGridLicensableFeatures_v4", (), _licences),
    "compute_mode": ("nvmlDeviceGetComputeMode", (), int),
    "num_processes": ("nvmlDeviceGetComputeRunningProcesses_v3", (), len),
    "num_mps_processes": (
        "nvmlDeviceGetMPSComputeRunningProcesses_v3", (), len
    ),
    "gsp_firmware": ("nvmlDeviceGetGspFirmwareVersion", (), _text),
}  # fmt: skip

# what the event watcher and the field reader need beside the getters
_CALLS = frozenset(
    {
        "nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetNvLinkState", "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlEventSetCreate", "nvmlDeviceRegisterEvents",
        "nvmlEventSetWait_v2", "nvmlEventSetFree", "nvmlDeviceGetSupportedEventTypes",
    }
)  # fmt: skip
ALLOWED = _CALLS | {name for name, _, _ in GETTERS.values()}


class Nvml:
    """A handle on NVML that can only ask. Raises Refused where NVML will not answer."""

    def __init__(self, module: Any = None) -> None:
        """Load and initialise NVML; `module` stands in for pynvml in tests."""
        if module is None:
            try:
                import pynvml as module
            except ImportError as error:
                raise Refused("NotInstalled", "nvidia-ml-py") from error
        self._module = module
        self._handles: dict[int, Any] = {}
        self._events: Any = None
        self._call("nvmlInit")

    def close(self) -> None:
        """Let NVML go."""
        if self._events is not None:
            self._call("nvmlEventSetFree", self._events)
        self._call("nvmlShutdown")

    def get(self, key: str, device: int | None = None) -> Any:
        """The plain answer of one getter."""
        name, further, plain = GETTERS[key]
        arguments = [self._constant(one) for one in further]
        if key == "mig_part":
            arguments.insert(0, self._mig_part(device or 0))
        elif name.startswith("nvmlDevice") and key != "device_count":
            arguments.insert(0, self._handle(device or 0))
        return plain(self._call(name, *arguments))

    def fields(self, device: int) -> dict[str, int]:
        """The field values of _FIELDS that this card answers."""
        values = self._call(
            "nvmlDeviceGetFieldValues", self._handle(device), list(_FIELDS.values())
        )
        found: dict[str, int] = {}
        for key, value in zip(_FIELDS, values, strict=True):
            if value.nvmlReturn == 0:
                member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}
                found[key] = int(getattr(value.value, member.get(value.valueType, "ullVal")))
        return found

    def active_nvlinks(self, device: int) -> int:
        """How many NVLinks of the card are up."""
        active = 0
        for link in range(18):
            try:
                active += int(self._call("nvmlDeviceGetNvLinkState", self._handle(device), link))
            except Refused as refusal:
                if link == 0 or refusal.reason != "NotSupported":
                    raise
                break
        return active

    def watch_xids(self, devices: range) -> None:
        """Start listening for Xid errors; `xids` collects them."""
        self._events = self._call("nvmlEventSetCreate")
        for device in devices:
            self._call(
                "nvmlDeviceRegisterEvents",
                self._handle(device),
                self._module.nvmlEventTypeXidCriticalError,
                self._events,
            )

    def xids(self) -> list[int]:
        """Xid numbers seen since the last call."""
        found: list[int] = []
        while self._events is not None:
            try:
                event = self._call("nvmlEventSetWait_v2", self._events, 0)
            except Refused:
                break
            found.append(int(event.eventData))
        return found

    def _handle(self, device: int) -> Any:
        if device not in self._handles:
            self._handles[device] = self._call("nvmlDeviceGetHandleByIndex", device)
        return self._handles[device]

    def _mig_part(self, device: int) -> Any:
        """The first MIG part of a card that this process may see."""
        for index in range(self._call("nvmlDeviceGetMaxMigDeviceCount", self._handle(device))):
            try:
                return self._call(
                    "nvmlDeviceGetMigDeviceHandleByIndex", self._handle(device), index
                )
            except Refused as refusal:
                if refusal.reason not in ("NotFound", "NotSupported"):
                    raise
        raise Refused("NotFound", "no MIG part")

    def _constant(self, one: object) -> object:
        return getattr(self._module, one) if isinstance(one, str) else one

    def _call(self, name: str, *arguments: Any) -> Any:
        if name not in ALLOWED:
            raise AssertionError(f"{name} is not on the list of calls that an audit may make")
        function = getattr(self._module, name, None)
        if function is None:
            raise Refused("FunctionNotFound", name)
        try:
            return function(*arguments)
        except self._module.NVMLError as error:
            reason = _ERRORS.get(int(getattr(error, "value", 0)), "Failed")
            raise Refused(reason, f"{name}: {error}") from error
