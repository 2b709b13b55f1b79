"""Does the memory hold what is written, is all of it there, and has it been failing."""

from collections.abc import Iterator, Mapping

from loracle.domain.audit import Check
from loracle.jobs.audit.judges import thresholds as limit
from loracle.jobs.audit.judges.case import Case, say, skipped, unknown
from loracle.jobs.audit.observation import Card

GROUP = "memory"


def judge(card: Card, case: Case) -> Iterator[Check]:
    """Every memory check of one card."""
    yield _pattern(card)
    yield _usable(card)
    yield _plan(card, case)
    yield _ecc(card)
    yield _retired(card)
    yield _remapped(card)


def _pattern(card: Card) -> Check:
    """Written and read back; chunks at link speed are not on the card at all."""
    code, pattern = "LRA-MEM-PATTERN", card.pattern
    if pattern is None:
        return unknown(code, GROUP, card, ("pattern",), card.refusals)
    share = pattern.tested_bytes / pattern.free_bytes if pattern.free_bytes else 0.0
    slow, median = pattern.slowest_chunk_bytes_per_s, pattern.median_chunk_bytes_per_s
    # a chunk interrupted by another tenant is slow once; memory on the host is slow in numbers
    often = pattern.slow_chunk_share >= limit.SLOW_CHUNKS or (median or 1e12) < limit.LINK_SPEED
    swapped = bool(slow and slow < limit.LINK_SPEED and often)
    if pattern.mismatched_words:
        status, means = "fail", say("means.bad_memory", words=pattern.mismatched_words)
    elif swapped and slow is not None:
        status, means = "fail", say("means.host_memory", rate_bytes_per_s=slow)
    elif share < limit.PATTERN_SHARE and pattern.stopped == "OutOfMemory":
        status, means = "fail", say("means.memory_cap", tested_bytes=pattern.tested_bytes,
                                    free_bytes=pattern.free_bytes)  # fmt: skip
    elif share < limit.PATTERN_SHARE:
        status, means = "unknown", say("means.pattern_short")
    else:
        status, means = "pass", None
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.pattern", tested_bytes=pattern.tested_bytes,
                  words=pattern.mismatched_words),
        expected=say("expected.pattern", tested_bytes=limit.PATTERN_SHARE * pattern.free_bytes),
        source="GpuZelenograd/memtest_vulkan; wilicc/gpu-burn", means=means,
        repeat="loracle audit",
    )  # fmt: skip


def _usable(card: Card) -> Check:
    """What was free when we came, of the whole."""
    code, total = "LRA-MEM-FREE", card.total_bytes
    free = card.part("memory", "free_bytes")
    if not isinstance(free, int) or not total:
        return unknown(code, GROUP, card, ("memory",), card.refusals)
    if card.is_part:
        return skipped(code, GROUP, card, "part")
    share = free / total
    status = (
        "pass" if share >= limit.USABLE_PASS
        else "warn" if share >= limit.USABLE_WARN else "fail"
    )  # fmt: skip
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.free", free_bytes=free),
        expected=say("expected.free", low_bytes=limit.USABLE_PASS * total, high_bytes=total),
        means=None if status == "pass" else say("means.not_free", used_bytes=total - free),
        source="NVIDIA DCGM memory plugin", repeat="nvidia-smi",
    )  # fmt: skip


def _plan(card: Card, case: Case) -> Check:
    code = "LRA-MEM-PLAN"
    if case.needs is None or case.needs.device_bytes is None:
        return skipped(code, GROUP, card, "no_plan")
    usable = _had(card)
    if not usable:
        return unknown(code, GROUP, card, ("memory", "pattern"), card.refusals)
    needed = case.needs.device_bytes
    status = "pass" if usable >= 1.02 * needed else "warn" if usable >= needed else "fail"
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.free", free_bytes=usable),
        expected=say("expected.needs", needed_bytes=needed),
        means=say("means.plan_fits" if status == "pass" else "means.plan_tight" if status == "warn"
                  else "means.plan_too_big", needed_bytes=needed),
        source="audit.source.plan", repeat="loracle plan RECIPE",
    )  # fmt: skip


def _had(card: Card) -> float | None:
    """What one process can have, its context included: less where the pattern test was capped."""
    free = card.part("memory", "free_bytes")
    pattern = card.pattern
    if pattern and pattern.stopped == "OutOfMemory":
        return pattern.tested_bytes + (card.context_bytes or 0)
    return float(free) if isinstance(free, int) else card.total_bytes


def _ecc(card: Card) -> Check:
    code, mode = "LRA-MEM-ECC", card.nvml.get("ecc_mode")
    before, after = card.number("ecc_uncorrected"), _after(card, "ecc_uncorrected")
    if before is None and after is None:
        return unknown(code, GROUP, card, ("ecc_uncorrected", "ecc_mode"), card.refusals)
    uncorrected = max(before or 0, after or 0)
    corrected = (_after(card, "ecc_corrected") or 0) - (card.number("ecc_corrected") or 0)
    on = isinstance(mode, list) and mode[:1] == [1]
    if uncorrected > 0:
        status, means = "fail", say("means.ecc_uncorrected")
    elif corrected > 0:
        status, means = "warn", say("means.ecc_corrected")
    else:
        status, means = "pass", None
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.ecc_on" if on else "found.ecc_off", uncorrected=int(uncorrected),
                  corrected=max(0, int(corrected))),
        expected=say("expected.zero"), means=means, source="NVIDIA DCGM; Meta GCM",
        repeat="nvidia-smi -q -d ECC",
    )  # fmt: skip


def _retired(card: Card) -> Check:
    code = "LRA-MEM-RETIRED"
    counts = [card.number("retired_single_bit"), card.number("retired_double_bit")]
    if all(value is None for value in counts):
        return unknown(code, GROUP, card, ("retired_double_bit",), card.refusals)
    pages = int(sum(value or 0 for value in counts))
    pending = bool(card.number("retired_pending"))
    status = "fail" if pending or pages > limit.RETIRED_FAIL else "warn" if pages else "pass"
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.pages", pages=pages, pending=int(pending)), expected=say("expected.zero"),
        means=say("means.worn") if status != "pass" else None, source="NVIDIA DCGM: over 63 fails",
        repeat="nvidia-smi -q -d PAGE_RETIREMENT",
    )  # fmt: skip


def _remapped(card: Card) -> Check:
    code, rows = "LRA-MEM-REMAPPED", card.after.get("remapped_rows", card.nvml.get("remapped_rows"))
    if not isinstance(rows, Mapping):
        return unknown(code, GROUP, card, ("remapped_rows",), card.refusals)
    uncorrectable = int(rows.get("uncorrectable", 0))
    correctable = int(rows.get("correctable", 0))
    broken = bool(rows.get("pending")) or bool(rows.get("failure"))
    if broken or uncorrectable > limit.REMAPPED_FAIL:
        status = "fail"
    else:
        status = "warn" if uncorrectable + correctable else "pass"
    means = say("means.remap_broken") if broken else say("means.worn") if status != "pass" else None
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.rows", rows=uncorrectable + correctable,
                  pending=int(bool(rows.get("pending"))), failure=int(bool(rows.get("failure")))),
        expected=say("expected.zero"), means=means, source="NVIDIA DCGM; Azure: 512",
        repeat="nvidia-smi -q -d ROW_REMAPPER",
    )  # fmt: skip


def _after(card: Card, key: str) -> float | None:
    value = card.after.get(key)
    return float(value) if isinstance(value, int | float) else None
