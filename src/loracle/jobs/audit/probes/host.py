"""Facts of the host: what the control group grants, where a run would write, what is preloaded.

No host name, address, path, user or variable's value leaves this file, other than numbers and
the base names of libraries.
"""

import glob
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from loracle.jobs.audit.source import Refused

_CGROUP = Path("/sys/fs/cgroup")
_KNOWN_VARIABLES = re.compile(
    r"CUDA_MPS_|CUDA_DEVICE_MEMORY_LIMIT|CUDA_DEVICE_SM_LIMIT|GPU_CORE_UTILIZATION_POLICY"
    r"|NVSHARE_|CUDA_VISIBLE_DEVICES$|NVIDIA_VISIBLE_DEVICES$"
)
_PLAIN_VALUE = re.compile(r"[0-9]{1,7}[%kmgKMG]?")
_SLICER_FILES = ("vgpulock", "cudevshr.cache")
_TOUCHED = re.compile(r"nvidia|libcuda|vgpu|nvshare|nvml", re.IGNORECASE)


def read_text(path: str) -> str:
    """A small text file with every UUID in it hashed; raises Refused."""
    from loracle.jobs.audit.nvml import digest

    try:
        text = Path(path).read_text("utf-8", errors="replace")
    except FileNotFoundError as error:
        raise Refused("NotFound", path) from error
    except PermissionError as error:
        raise Refused("NoPermission", path) from error
    except OSError as error:
        raise Refused("Failed", path) from error
    return re.sub(r"(?:GPU|MIG)-[0-9a-f-]{36}", lambda found: digest(found[0]), text)


def _first(*paths: str) -> str | None:
    for path in paths:
        try:
            return read_text(path).strip()
        except Refused:
            continue
    return None


def host(before: "CpuTimes") -> dict[str, Any]:
    """Cores, RAM and shared memory as granted, and the share of CPU time taken away since."""
    throttled, steal = before.shares(CpuTimes())
    return {
        "cores_granted": cores_granted(),
        "cores_listed": os.cpu_count(),
        "ram_granted_bytes": ram_granted(),
        "ram_listed_bytes": _ram_listed(),
        "shm_bytes": _size("/dev/shm"),
        "cpu_throttled_share": throttled,
        "cpu_steal_share": steal,
        "container": container(),
    }


def cores_granted() -> float:
    """The least of affinity, cpuset and quota."""
    granted = [float(len(os.sched_getaffinity(0)))]
    quota = _first("/sys/fs/cgroup/cpu.max")
    if quota and not quota.startswith("max"):
        amount, period = quota.split()
        granted.append(int(amount) / int(period))
    amount_v1 = _first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period_v1 = _first("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if amount_v1 and period_v1 and int(amount_v1) > 0:
        granted.append(int(amount_v1) / int(period_v1))
    return min(granted)


def _ram_listed() -> int | None:
    match = re.search(r"MemTotal:\s+(\d+) kB", _first("/proc/meminfo") or "")
    return int(match[1]) * 1024 if match else None


def ram_granted() -> int | None:
    """The least of the machine's memory and the control group's limit."""
    limits = [_ram_listed()]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _first(path)
        if text and text.isdigit() and int(text) < 2**60:
            limits.append(int(text))
    return min((one for one in limits if one), default=None)


def _size(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def container() -> str:
    """docker, kubernetes, lxc, wsl, gvisor or none, by the signs that each leaves."""
    version = _first("/proc/version") or ""
    if "microsoft" in version.lower():
        return "wsl"
    if "Linux version 4.4.0 " in version and "2016" in version:
        return "gvisor"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "docker"
    return "lxc" if "lxc" in (_first("/proc/1/cgroup") or "") else "none"


class CpuTimes:
    """Counters of CPU time held back (quota) and stolen (another guest), at one moment."""

    def __init__(self) -> None:
        stat = _first("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat") or ""
        numbers = dict(re.findall(r"^(\w+) (\d+)$", stat, re.MULTILINE))
        self.periods = int(numbers.get("nr_periods", 0))
        self.throttled = int(numbers.get("nr_throttled", 0))
        fields = [int(one) for one in (_first("/proc/stat") or "cpu 0").split("\n")[0].split()[1:]]
        self.steal = fields[7] if len(fields) > 7 else 0
        self.total = sum(fields[:8])

    def shares(self, later: "CpuTimes") -> tuple[float, float]:
        """(periods throttled, time stolen) between two moments, as shares."""
        periods, total = later.periods - self.periods, later.total - self.total
        return (
            (later.throttled - self.throttled) / periods if periods > 0 else 0.0,
            (later.steal - self.steal) / total if total > 0 else 0.0,
        )


def disks(output_folder: str) -> list[dict[str, Any]]:
    """The places that a run writes to, by role; no paths."""
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    places = (("output", output_folder), ("cache", home), ("temporary", tempfile.gettempdir()))
    found: list[dict[str, Any]] = []
    devices: dict[int, str] = {}
    for role, path in places:
        existing = _existing(Path(path))
        try:
            size, device = os.statvfs(existing), existing.stat().st_dev
        except OSError:
            continue
        found.append(
            {
                "role": role,
                "free_bytes": size.f_bavail * size.f_frsize,
                "total_bytes": size.f_blocks * size.f_frsize,
                "file_system": _file_system(existing),
                "same_as": devices.get(device),
            }
        )
        devices.setdefault(device, role)
    return found


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _mounts() -> list[tuple[str, str, str]]:
    """(mount point, file system, base name of what is mounted) of every mount."""
    rows = []
    for line in (_first("/proc/self/mountinfo") or "").split("\n"):
        left, _, right = line.partition(" - ")
        fields, source = left.split(), right.split()
        if len(fields) >= 5 and source:
            rows.append((fields[4], source[0], fields[3].rsplit("/", 1)[-1]))
    return rows


def _file_system(path: Path) -> str:
    inside = [row for row in _mounts() if path.is_relative_to(row[0])]
    return max(inside, key=lambda row: len(row[0]))[1] if inside else ""


def mounts() -> list[dict[str, str]]:
    """Mounts that touch the driver's files, with base names instead of host paths."""
    if not _mounts():
        raise Refused("NotFound", "/proc/self/mountinfo")
    return [
        {"mount_point": point, "file_system": kind, "root_name": root}
        for point, kind, root in _mounts()
        if _TOUCHED.search(point)
    ]


def paths() -> dict[str, Any]:
    """Preloads, the kind of nvidia-smi, known variables, slicers' files, mapped libraries."""
    program = shutil.which("nvidia-smi")
    preload = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    preload += (_first("/etc/ld.so.preload") or "").split()
    mapped = {
        line.rsplit("/", 1)[-1]
        for line in (_first("/proc/self/maps") or "").split("\n")
        if "/" in line and _TOUCHED.search(line.rsplit("/", 1)[-1])
    }
    try:
        proc_cards = len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        proc_cards = None
    folder = tempfile.gettempdir()
    return {
        "preloads": [one.rsplit("/", 1)[-1] for one in preload],
        "nvidia_smi": _kind(program) if program else None,
        "environment": _variables(),
        "slicer_files": [one for one in _SLICER_FILES if (Path(folder) / one).exists()],
        "mapped_libraries": sorted(mapped),
        "device_nodes": len(glob.glob("/dev/nvidia[0-9]*")),
        "proc_cards": proc_cards,
    }


def _variables() -> dict[str, str]:
    """Which known variables are set; the value only where it is a bare number or size."""
    return {
        name: value if _PLAIN_VALUE.fullmatch(value) else "set"
        for name, value in os.environ.items()
        if _KNOWN_VARIABLES.match(name)
    }


def _kind(program: str) -> str:
    try:
        with open(program, "rb") as file:
            head = file.read(4)
    except OSError:
        return "other"
    if head == b"\x7fELF":
        return "elf"
    return "script" if head[:2] == b"#!" else "other"
