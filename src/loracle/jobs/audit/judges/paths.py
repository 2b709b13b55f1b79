"""Has the view of the machine been tampered with: preloads, shims, mounts, counts."""

import re
from collections.abc import Iterator, Mapping

from loracle.domain.audit import Check
from loracle.jobs.audit.judges.case import Case, say, skipped, unknown

GROUP = "identity"
SLICERS = ("libvgpu", "libnvshare", "libcuda-control", "libgpushare", "libgemhook", "libbless")
HARMLESS = (
    "libjemalloc", "libtcmalloc", "libmimalloc", "libgomp", "libiomp", "libstdc++", "libnss",
    "libasan", "libomp", "libmkl", "libtorch", "libnccl-net", "libdlfaker", "libvglfaker",
    "libnss_wrapper", "libfakeroot", "libkeepalive", "libiouring",
)  # fmt: skip
_TOUCHY = re.compile(r"nvml|nvidia|cuda|gpu", re.IGNORECASE)


def judge(case: Case) -> Iterator[Check]:
    """Every check of the paths that identity is read through."""
    yield _count(case)
    yield _driver(case)
    yield _nvidia_smi(case)
    yield _preload(case)
    yield _mounts(case)


def _count(case: Case) -> Check:
    """As many distinct cards by every path."""
    code, seen = "LRA-ID-COUNT", case.seen
    buses = [card.bus_id for card in seen.cards if card.bus_id]
    uuids = [card.text("uuid_hash") for card in seen.cards if card.text("uuid_hash")]
    parts = any(card.is_part for card in seen.cards)
    listed = seen.num_nvml_devices or len(seen.cards)
    if not listed:
        return unknown(code, GROUP, None, ("device_count",), seen.software.refusals)
    proc = seen.paths.proc_cards
    sold = case.sold.num_gpus if case.sold else None
    found, means, status = say("found.count", num_gpus=len(seen.cards)), None, "pass"
    if not parts and (len(set(buses)) < len(buses) or len(set(uuids)) < len(uuids)):
        shared = min(len(set(buses)) or listed, len(set(uuids)) or listed)
        found, means = say("found.count_shared", listed=listed, num_gpus=shared), say("means.count")
        status = "fail"
    elif proc and proc < listed:
        found, means = say("found.count_kernel", listed=listed, num_gpus=proc), say("means.count")
        status = "fail"
    elif sold and len(seen.cards) < sold:
        means, status = say("means.fewer", sold=sold, num_gpus=len(seen.cards)), "fail"
    return Check(
        code=code, group=GROUP, status=status, found=found,
        expected=say("expected.count", num_gpus=sold or listed), means=means,
        repeat="nvidia-smi -L; ls /proc/driver/nvidia/gpus",
    )  # fmt: skip


def _driver(case: Case) -> Check:
    """The kernel's driver, NVML's word for it, and the library that is mapped."""
    code, seen = "LRA-ID-DRIVER", case.seen
    kernel, nvml = seen.paths.kernel_driver, seen.software.driver
    if kernel and nvml:
        good = kernel == nvml
        return Check(
            code=code, group=GROUP, status="pass" if good else "fail",
            found=say("found.drivers", kernel=kernel, nvml=nvml), expected=say("expected.same"),
            means=None if good else say("means.driver_mismatch"),
            repeat="cat /proc/driver/nvidia/version; nvidia-smi",
        )  # fmt: skip
    return unknown(code, GROUP, None, ("/proc/driver/nvidia/version",), seen.paths.refusals)


def _nvidia_smi(case: Case) -> Check:
    code, paths = "LRA-ID-SMI", case.seen.paths
    if paths.nvidia_smi is None:
        return skipped(code, GROUP, None, "no_nvidia_smi")
    sandboxed = case.seen.host.container in ("wsl", "gvisor")
    if paths.nvidia_smi == "elf":
        status, means = "pass", None
    elif sandboxed:
        status, means = "unknown", say("means.sandbox")
    else:
        status, means = "fail", say("means.shim")
    return Check(
        code=code, group=GROUP, status=status, found=say("found.binary", kind=paths.nvidia_smi),
        expected=say("expected.elf"), means=means,
        source="NVIDIA/NemoClaw #4062", repeat="head -c 4 $(command -v nvidia-smi) | xxd",
    )  # fmt: skip


def _preload(case: Case) -> Check:
    """Libraries forced into every process; slicers are judged by the share checks."""
    code, preloads = "LRA-ID-PRELOAD", case.seen.paths.preloads
    others = [
        one
        for one in preloads
        if not one.startswith(HARMLESS) and not one.startswith(SLICERS)
    ]  # fmt: skip
    touchy = [one for one in others if _TOUCHY.search(one)]
    status = "fail" if touchy else "warn" if others else "pass"
    return Check(
        code=code, group=GROUP, status=status,
        found=say("found.preloads", names=", ".join(preloads) or "-"),
        expected=say("expected.no_preload"),
        means=say("means.preload") if touchy else say("means.preload_other") if others else None,
        repeat="echo $LD_PRELOAD; cat /etc/ld.so.preload",
    )  # fmt: skip


def _mounts(case: Case) -> Check:
    """Mounts over the identity files, other than those that NVIDIA's container toolkit makes."""
    code, mounts = "LRA-ID-MOUNTS", case.seen.paths.mounts
    if not mounts and "mounts" in case.seen.paths.refusals:
        return unknown(code, GROUP, None, ("mounts",), case.seen.paths.refusals)
    strange = [one for one in mounts if not _usual_mount(one)]
    listed = "; ".join(f"{one['file_system']} on {one['mount_point']}" for one in strange)
    return Check(
        code=code, group=GROUP, status="fail" if strange else "pass",
        found=say("found.mounts", mounts=listed or "-"), expected=say("expected.usual_mounts"),
        means=say("means.mounts") if strange else None,
        source="Datura-ai/lium-io #1303", repeat="grep -i nvidia /proc/self/mountinfo",
    )  # fmt: skip


def _usual_mount(mount: Mapping[str, str]) -> bool:
    """The toolkit mounts a tmpfs at /proc/driver/nvidia, procfs below it, and host libraries."""
    point, kind = mount["mount_point"], mount["file_system"]
    if point.startswith("/proc/driver/nvidia"):
        if "/gpus" in point:
            return kind == "proc"
        return kind in ("proc", "tmpfs")
    if point.startswith("/sys/"):
        return kind == "sysfs"
    own_name, source_name = point.rsplit("/", 1)[-1], mount.get("root_name", "")
    return not source_name or source_name.split(".so")[0] == own_name.split(".so")[0]
