"""Whole or a part, alone or shared: MIG, vGPU, MPS, software slicers, neighbours.

Time slicing leaves no sign in a container but one: a kernel of fixed length takes longer now and
then, or loses a share of the clock, while the clock is at its maximum and nothing limits it.
"""

import statistics
from collections.abc import Iterator

from loracle.domain.audit import Check
from loracle.jobs.audit.judges import thresholds as limit
from loracle.jobs.audit.judges.case import Case, say, skipped, unknown
from loracle.jobs.audit.judges.paths import SLICERS
from loracle.jobs.audit.observation import Card, Idle, Series, Timing

GROUP = "share"
SLICER_VARIABLES = (
    "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT", "GPU_CORE_UTILIZATION_POLICY", "NVSHARE_",
)  # fmt: skip
MPS_VARIABLES = (
    "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)  # fmt: skip


def judge(card: Card, case: Case) -> Iterator[Check]:
    """Every sharing check of one card."""
    yield _mig(card, case)
    yield _vgpu(card, case)
    yield _mps(card, case)
    yield _idle(card)
    yield _timing(card)
    yield _together(card, case)


def judge_machine(case: Case) -> Iterator[Check]:
    """Software slicers show in the process, not on a card."""
    paths = case.seen.paths
    signs = [name for name in paths.preloads if name.startswith(SLICERS)]
    signs += [name for name in paths.mapped_libraries if name.startswith(SLICERS)]
    signs += [name for name in paths.environment if name.startswith(SLICER_VARIABLES)]
    signs += list(paths.slicer_files)
    yield Check(
        code="LRA-SHARE-SLICER", group=GROUP,
        status="pass" if not signs or case.part_sold else "fail",
        found=say("found.signs", signs=", ".join(dict.fromkeys(signs)) or "-"),
        expected=say("expected.no_slicer"), source="Project-HAMi/HAMi-core; grgalex/nvshare",
        means=say("means.slicer") if signs else None,
        repeat="cat /etc/ld.so.preload; env | grep -E 'CUDA_DEVICE|NVSHARE'",
    )  # fmt: skip


def _mig(card: Card, case: Case) -> Check:
    code, mode = "LRA-SHARE-MIG", card.nvml.get("mig_mode")
    if card.is_part:
        return Check(
            code=code, group=GROUP, status="pass" if case.part_sold else "fail", device=card.index,
            found=say(
                "found.mig",
                num_sms=card.cuda.num_sms if card.cuda and card.cuda.num_sms else 0,
                total_bytes=(card.cuda.total_bytes if card.cuda else None) or card.total_bytes or 0,
            ),
            expected=say("expected.part" if case.part_sold else "expected.whole"),
            means=say("means.part_as_sold" if case.part_sold else "means.part"),
            source="NVIDIA MIG guide", repeat="nvidia-smi -L",
        )  # fmt: skip
    if mode is None and card.cuda is None:
        return unknown(code, GROUP, card, ("mig_mode", "cuda"), card.refusals)
    return _whole(code, card, "nvidia-smi -L")


def _vgpu(card: Card, case: Case) -> Check:
    code, mode = "LRA-SHARE-VGPU", card.number("virtualisation")
    brand = card.number("brand")
    if card.is_vgpu:
        licences = card.nvml.get("licences")
        held = isinstance(licences, list) and any(
            isinstance(one, dict) and one.get("licensed") for one in licences
        )
        sold_so = case.part_sold and held
        return Check(
            code=code, group=GROUP, status="pass" if sold_so else "fail", device=card.index,
            found=say("found.vgpu" if held else "found.vgpu_unlicensed", name=card.name or "?"),
            expected=say("expected.part" if case.part_sold else "expected.whole"),
            means=say("means.part_as_sold" if sold_so else "means.vgpu" if held else
                      "means.vgpu_unlicensed"),
            source="NVIDIA/gpu-operator #220, rapidsai/cudf #10507", repeat="nvidia-smi -q",
        )  # fmt: skip
    if mode is None and brand is None:
        return unknown(code, GROUP, card, ("virtualisation", "brand"), card.refusals)
    if mode == 1:
        return Check(
            code=code, group=GROUP, status="pass", device=card.index,
            found=say("found.passthrough"), expected=say("expected.whole"),
            repeat="nvidia-smi -q",
        )  # fmt: skip
    return _whole(code, card, "nvidia-smi -q")


def _mps(card: Card, case: Case) -> Check:
    code = "LRA-SHARE-MPS"
    variables = [name for name in case.seen.paths.environment if name.startswith(MPS_VARIABLES)]
    clients = int(card.number("num_mps_processes") or 0)
    if not variables and not clients:
        return _whole(code, card, "env | grep CUDA_MPS; nvidia-smi")
    limited = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in variables or clients > 1
    status = "pass" if case.part_sold else "fail" if limited else "warn"
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.mps", names=", ".join(variables) or "-", clients=clients),
        expected=say("expected.whole"), means=say("means.mps"),
        repeat="env | grep CUDA_MPS; nvidia-smi",
    )  # fmt: skip


def _whole(code: str, card: Card, repeat: str) -> Check:
    return Check(
        code=code, group=GROUP, status="pass", device=card.index, found=say("found.none"),
        expected=say("expected.whole"), repeat=repeat,
    )  # fmt: skip


def _idle(card: Card) -> Check:
    """Memory, load and power before any context of ours exists."""
    code, idle, total = "LRA-SHARE-IDLE", card.idle, card.total_bytes
    if idle is None or not _numbers(idle.used_bytes):
        return unknown(code, GROUP, card, ("idle",), card.refusals)
    used = statistics.median(_numbers(idle.used_bytes))
    busy = _mean(idle.gpu_percent)
    watts = _mean(idle.watts)
    share = used / total if total else 0.0
    allowed = limit.IDLE_BYTES + limit.IDLE_SHARE * (total or 0)
    status = "pass"
    if used > allowed or (busy or 0) > 0:
        status = "warn"
    if _spike_only(idle, used, allowed):
        status = "pass"
    power_share = _power_share(card, watts)
    if power_share > limit.IDLE_POWER_WARN and not _says_idle(idle):
        status = "warn"
    if share > limit.USED_SHARE or (busy or 0) > limit.USED_PERCENT:
        status = "fail"
    if power_share > limit.IDLE_POWER_FAIL and not _says_idle(idle):
        status = "fail"
    listed = card.processes_before
    found = say(
        "found.idle", used_bytes=used, percent=busy if busy is not None else 0.0,
        idle_watts=watts if watts is not None else 0.0, processes=listed or 0,
    )  # fmt: skip
    means = None
    if status != "pass":
        means = say("means.neighbour" if listed else "means.neighbour_unlisted", used_bytes=used)
    return Check(
        code=code, group=GROUP, status=status, device=card.index, found=found,
        expected=say("expected.idle", allowed_bytes=allowed, percent=0), means=means,
        source="Meta GCM (15 MiB); lium (5 %)", repeat="nvidia-smi",
    )  # fmt: skip


def _spike_only(idle: Idle, used: float, allowed: float) -> bool:
    """One busy sample of many is a driver's housekeeping, not a tenant."""
    busy = [value for value in _numbers(idle.gpu_percent) if value > 0]
    return used <= allowed and len(busy) <= max(1, len(idle.gpu_percent) // 10)


def _power_share(card: Card, watts: float | None) -> float:
    limit_watts = (card.number("power_limit_mw") or 0) / 1000
    return watts / limit_watts if watts and limit_watts else 0.0


def _says_idle(idle: Idle) -> bool:
    bits = [int(value) for value in _numbers(idle.events)]
    return bool(bits) and sum(bool(one & limit.IDLE) for one in bits) > len(bits) / 2


def _timing(card: Card) -> Check:
    """The distribution of one kernel's duration, read together with clock and limits."""
    code, timing = "LRA-SHARE-TIMING", card.timing
    if timing is None or len(timing.durations_us) < 50:
        return unknown(code, GROUP, card, ("timing",), card.refusals)
    lost, slow, spread = lost_share(timing), slow_share(timing), spread_of(timing)
    limited = bool(timing.events & limit.LIMITING)
    at_full_clock = timing.sm_mhz is None or timing.max_sm_mhz is None or (
        timing.sm_mhz >= 0.6 * timing.max_sm_mhz
    )  # fmt: skip
    gaps = len(timing.gaps_ms) > 0.01 * len(timing.durations_us)
    sliced = lost > limit.LOST_FAIL and (slow > limit.SLOW_SHARE or gaps)
    if sliced and at_full_clock and not limited:
        status, means = "fail", say("means.time_sliced", lost_share=lost)
    elif lost > limit.LOST_WARN or spread > 3 * limit.TIMING_CV_PASS or gaps:
        status = "warn"
        means = say("means.limited" if limited else "means.unsteady", lost_share=lost)
    elif spread > limit.TIMING_CV_PASS and slow > limit.SLOW_SHARE:
        status, means = "warn", say("means.unsteady", lost_share=lost)
    else:
        status, means = "pass", None
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say(
            "found.timing", lost_share=lost, slow_share=slow, spread=round(spread, 4),
            gaps=len(timing.gaps_ms), launches=len(timing.durations_us),
        ),
        expected=say("expected.timing", spread=limit.TIMING_CV_PASS, lost_share=limit.LOST_WARN),
        means=means, source="audit.source.timing",
        repeat="loracle audit --quick",
    )  # fmt: skip


def fast_mode_us(timing: Timing) -> float:
    """The kernel's own length: the tenth percentile of its durations."""
    ordered = sorted(timing.durations_us)
    return ordered[len(ordered) // 10]


def lost_share(timing: Timing) -> float:
    """Share of the time in which the kernel was launched but not running."""
    total = sum(timing.durations_us) + 1000 * sum(timing.gaps_ms)
    return max(0.0, 1 - fast_mode_us(timing) * len(timing.durations_us) / total)


def slow_share(timing: Timing) -> float:
    """Share of launches that took far longer than the fast mode."""
    line = limit.SLOW_FACTOR * fast_mode_us(timing)
    return sum(one > line for one in timing.durations_us) / len(timing.durations_us)


def spread_of(timing: Timing) -> float:
    """Coefficient of variation of the durations."""
    return statistics.pstdev(timing.durations_us) / statistics.fmean(timing.durations_us)


def _together(card: Card, case: Case) -> Check:
    """Each card's rate while all work, against its own alone."""
    code = "LRA-SHARE-TOGETHER"
    if len(case.seen.cards) < 2:
        return skipped(code, GROUP, card, "one_card")
    if card.together is None or not card.together.alone:
        return unknown(code, GROUP, card, ("together",), card.refusals)
    share = card.together.best / card.together.alone
    status = (
        "pass" if share >= limit.TOGETHER_PASS
        else "warn" if share >= limit.TOGETHER_FAIL else "fail"
    )  # fmt: skip
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.together", share=share, rate_flops_per_s=card.together.best),
        expected=say("expected.share_at_least", share=limit.TOGETHER_PASS),
        means=None if status == "pass" else say("means.together", share=share),
        source="Datura-ai/lium-io #1224", repeat="loracle audit",
    )  # fmt: skip


def _numbers(series: Series) -> list[float]:
    return [value for value in series if value is not None]


def _mean(series: Series) -> float | None:
    values = _numbers(series)
    return statistics.fmean(values) if values else None
