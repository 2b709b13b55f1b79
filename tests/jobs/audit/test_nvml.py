"""NVML is only ever asked: no setter is reached, every refusal is kept alive."""

import re
from types import SimpleNamespace

import pynvml
import pytest

from loracle.jobs.audit import Case, Options, judge, observe
from loracle.jobs.audit.live import Live
from loracle.jobs.audit.nvml import ALLOWED, GETTERS, Nvml
from loracle.jobs.audit.source import REASONS, Refused

# every function of the binding that changes the state of a card or of the driver
SETTER = re.compile(
    r"^(?!nvml(System)?EventSet)(?!nvml(Device|System|Unit|GpuInstance|Vgpu\w*?)?Get)nvml\w*?"
    r"(Set|Reset|Clear|Create|Destroy|Freeze|Modify|Remove|Discover|Activate|Update|Write)[A-Z]"
)
DEPRECATED = {
    "nvmlDeviceGetTemperature", "nvmlDeviceGetViolationStatus", "nvmlDeviceGetPowerState",
    "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetSupportedClocksThrottleReasons",
}  # fmt: skip


class Recorded:
    """pynvml with every function replaced: notes its name, and answers or refuses."""

    def __init__(self, error: int | None = None, after: int = 0) -> None:
        self.called: list[str] = []
        self._error, self._after = error, after

    def __getattr__(self, name):
        real = getattr(pynvml, name)
        if not name.startswith("nvml") or not callable(real):
            return real

        def call(*arguments):
            self.called.append(name)
            if self._error is not None and len(self.called) > self._after:
                raise pynvml.NVMLError(self._error)
            if name == "nvmlEventSetWait_v2":
                raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
            if name == "nvmlDeviceGetFieldValues":
                return [
                    SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=0))
                    for _ in arguments[1]
                ]
            return ANSWERS.get(name, 0)

        return call


ANSWERS = {
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetName": "NVIDIA GeForce RTX 4090",
    "nvmlDeviceGetUUID": "GPU-00000000-0000-0000-0000-000000000000",
    "nvmlSystemGetDriverVersion": "580.95.05",
    "nvmlSystemGetNVMLVersion": "13.580",
    "nvmlSystemGetCudaDriverVersion_v2": 13000,
    "nvmlDeviceGetCudaComputeCapability": (8, 9),
    "nvmlDeviceGetPciInfo_v3": SimpleNamespace(
        busId="00000000:01:00.0", pciDeviceId=0x268410DE, pciSubSystemId=0x14581458
    ),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(
        total=24564 << 20, reserved=380 << 20, free=24182 << 20, used=2 << 20
    ),
    "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=1 << 28),
    "nvmlDeviceGetPowerManagementLimitConstraints": [10000, 600000],
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
    "nvmlDeviceGetEccMode": [0, 0],
    "nvmlDeviceGetRetiredPages": [],
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetComputeRunningProcesses_v3": [],
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": [],
    "nvmlDeviceGetGridLicensableFeatures_v4": SimpleNamespace(
        licensableFeaturesCount=0, gridLicensableFeatures=[]
    ),
    "nvmlDeviceGetPowerManagementDefaultLimit": 450000,
    "nvmlDeviceGetEnforcedPowerLimit": 450000,
}


def test_no_setter_is_on_the_list():
    assert [name for name in ALLOWED if SETTER.match(name)] == []


def test_the_pattern_knows_the_setters_of_the_binding():
    """The list is tested against a pattern; the pattern against names that must be in it."""
    known = [name for name in dir(pynvml) if SETTER.match(name)]
    assert len(known) > 60
    assert {
        "nvmlDeviceSetPersistenceMode", "nvmlDeviceSetPowerManagementLimit_v2",
        "nvmlDeviceResetGpuLockedClocks", "nvmlDeviceClearEccErrorCounts", "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstance", "nvmlGpuInstanceDestroy", "nvmlNvlinkSetBwMode_v1",
        "nvmlDeviceSetFanSpeed_v2", "nvmlDeviceSetComputeMode", "nvmlDeviceModifyDrainState",
        "nvmlDeviceClearFieldValues",
    } - set(known) <= {"nvmlGpuInstanceDestroy"}  # fmt: skip
    assert "nvmlGpuInstanceDestroy" not in ALLOWED


def test_the_list_exists_in_the_binding_and_holds_nothing_deprecated():
    assert [name for name in ALLOWED if not hasattr(pynvml, name)] == []
    assert set() == ALLOWED & DEPRECATED


def test_a_call_off_the_list_is_a_fault_of_ours():
    with pytest.raises(AssertionError):
        Nvml(Recorded())._call("nvmlDeviceSetPersistenceMode")


def test_a_whole_live_audit_calls_no_setter(tmp_path):
    module = Recorded()
    with Live(nvml_module=module, output_folder=str(tmp_path)) as live:
        seen = observe(live, Options(idle_seconds=0, disk_folder=str(tmp_path)))
        live._nvml.watch_xids(range(1))
        live._load_sample(0)
    assert seen.cards[0].text("name") == "NVIDIA GeForce RTX 4090"
    assert len(set(module.called)) > 50
    assert [name for name in module.called if SETTER.match(name)] == []
    assert set(module.called) <= ALLOWED


@pytest.mark.parametrize("code", [2, 3, 4, 6, 9, 12, 13, 15, 18, 25, 999, 17])
def test_every_error_becomes_a_refusal(code):
    nvml = Nvml(Recorded(code, after=1))
    with pytest.raises(Refused) as caught:
        nvml.get("name", 0)
    assert caught.value.reason in REASONS


@pytest.mark.parametrize(
    ("code", "reason"),
    [(3, "NotSupported"), (4, "NoPermission"), (13, "FunctionNotFound"), (15, "GpuIsLost"),
     (18, "LibraryMismatch"), (9, "DriverNotLoaded"), (999, "Unknown")],
)  # fmt: skip
def test_reasons_have_their_names(code, reason):
    with pytest.raises(Refused) as caught:
        Nvml(Recorded(code, after=1)).get("power_mw", 0)
    assert caught.value.reason == reason


@pytest.mark.parametrize("after", [0, 1, 5, 12, 40])
def test_an_audit_outlives_a_driver_lost_at_any_moment(after, tmp_path):
    with Live(nvml_module=Recorded(15, after), output_folder=str(tmp_path)) as live:
        report = judge(Case(seen=observe(live, Options(idle_seconds=0))))
    assert report.exit_code in (2, 3)
    assert {check.group for check in report.checks} >= {"host", "software"}


def test_no_binding_function_is_a_refusal():
    class Old(Recorded):
        def __getattr__(self, name):
            if name == "nvmlDeviceGetTemperatureV":
                raise AttributeError(name)
            return super().__getattr__(name)

    with pytest.raises(Refused) as caught:
        Nvml(Old()).get("celsius", 0)
    assert caught.value.reason == "FunctionNotFound"


def test_uuids_are_hashed_before_anything_sees_them():
    assert "GPU-" not in Nvml(Recorded()).get("uuid_hash", 0)
    assert set(GETTERS) & {"uuid", "serial"} == set()
