"""What the card does under work: burst, bandwidth, and a soak with its reasons for slowing."""

import statistics
from collections.abc import Iterator

from loracle.domain.audit import Check, Fingerprint
from loracle.domain.plan import Hint
from loracle.jobs.audit.judges import thresholds as limit
from loracle.jobs.audit.judges.case import Case, say, skipped, unknown
from loracle.jobs.audit.observation import Card, Series, Soak

GROUP = "load"


def judge(card: Card, case: Case) -> Iterator[Check]:
    """Every load check of one card."""
    expected = case.expected(card)
    yield _gemm(card, expected)
    yield _bandwidth(card, expected)
    yield _arithmetic(card)
    yield _power_limit(card)
    yield _drop(card)
    yield _thermal(card)
    yield _temperature(card)
    yield _locked(card)
    yield _xid(card, case)


def _gemm(card: Card, expected: Fingerprint | None) -> Check:
    code, gemm = "LRA-LOAD-GEMM", card.gemm
    if gemm is None:
        return unknown(code, GROUP, card, ("gemm",), card.refusals)
    if card.is_part or expected is None:
        return skipped(code, GROUP, card, "part" if card.is_part else "not_in_table")
    reference, source, known = gemm_reference(expected)
    if reference is None or gemm.dtype != expected.dtype:
        return skipped(code, GROUP, card, "no_reference")
    share = gemm.best / reference
    if known:
        passes, warns = limit.GEMM_PASS, limit.GEMM_WARN
        status = "pass" if share >= passes else "warn" if share >= warns else "fail"
    else:
        status = "pass" if share >= 1 else "unknown"
    if status == "fail" and len(gemm.repeats) < 2:
        status = "warn"  # a slow result fails only when it repeats
    low = (limit.GEMM_PASS if known else 1.0) * reference
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.gemm", dtype=gemm.dtype, rate_flops_per_s=gemm.best),
        expected=say("expected.flops_from", low_flops_per_s=low),
        source=source, means=None if status == "pass" else _why_slow(card, share),
        repeat="loracle audit --quick",
    )  # fmt: skip


def gemm_reference(expected: Fingerprint) -> tuple[float | None, str, bool]:
    """(rate, source, whether it was measured): the low end of what was published for the card.

    Where nobody published one, a share of the data sheet by kind of card, which cards of that
    kind reach; falling short of that is not proof.
    """
    if expected.measured_flops_per_s is not None:
        return expected.measured_flops_per_s[0], expected.sources["rates"], True
    if expected.peak_flops_per_s is None:
        return None, "", False
    floor = limit.PEAK_FLOOR[expected.family]
    if expected.tdp_watts <= limit.LOW_POWER_WATTS:
        floor = limit.LOW_POWER_FLOOR
    return floor * expected.peak_flops_per_s, expected.sources["sheet"], False


def _why_slow(card: Card, share: float) -> object:
    """Heat and power have their own checks; full clocks without a reason point at sharing."""
    timing = card.timing
    limited = bool(timing and timing.events & limit.LIMITING)
    at_clock = bool(
        timing and timing.sm_mhz and timing.max_sm_mhz and timing.sm_mhz > 0.8 * timing.max_sm_mhz
    )
    if share < 0.75 and at_clock and not limited:
        return say("means.slow_at_full_clock", share=share)
    return say("means.slow", share=share, longer_share=1 / share - 1)


def _bandwidth(card: Card, expected: Fingerprint | None) -> Check:
    code, rates = "LRA-LOAD-BANDWIDTH", card.bandwidth
    if rates is None:
        return unknown(code, GROUP, card, ("bandwidth",), card.refusals)
    if card.is_part or expected is None:
        return skipped(code, GROUP, card, "part" if card.is_part else "not_in_table")
    sheet = expected.bandwidth_bytes_per_s
    reference = (expected.copy_share or limit.DEFAULT_COPY_SHARE) * sheet
    share = rates.best / reference
    good = share >= limit.COPY_PASS or rates.best >= limit.COPY_OF_PEAK * sheet
    status = "pass" if good else "warn" if share >= limit.COPY_WARN else "fail"
    if status == "fail" and len(rates.repeats) < 2:
        status = "warn"
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.bandwidth", rate_bytes_per_s=rates.best),
        expected=say("expected.rate", low_bytes_per_s=limit.COPY_PASS * reference),
        source=expected.sources["copy"],
        means=None if status == "pass" else say("means.slow_memory", share=share),
        repeat="loracle audit --quick",
    )  # fmt: skip


def _arithmetic(card: Card) -> Check:
    """Equal products must give equal results."""
    code, gemm = "LRA-LOAD-RESULTS", card.gemm
    if gemm is None or gemm.mismatches is None:
        return unknown(code, GROUP, card, ("gemm",), card.refusals)
    return Check(
        code=code, group=GROUP, status="fail" if gemm.mismatches else "pass", device=card.index,
        found=say("found.mismatches", mismatches=gemm.mismatches), expected=say("expected.zero"),
        means=say("means.wrong_results") if gemm.mismatches else None,
        source="wilicc/gpu-burn", repeat="loracle audit",
    )  # fmt: skip


def _power_limit(card: Card) -> Check:
    code = "LRA-LOAD-POWER-LIMIT"
    now, default = card.number("power_limit_mw"), card.number("power_default_mw")
    if not now or not default:
        return unknown(code, GROUP, card, ("power_limit_mw", "power_default_mw"), card.refusals)
    share = now / default
    if share >= limit.POWER_PASS:
        status = "pass"
    elif share >= limit.POWER_WARN or not _slow(card):
        status = "warn"
    else:
        status = "fail"
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.watts", limit_watts=now / 1000),
        expected=say("expected.watts", limit_watts=default / 1000),
        means=None if status == "pass" else say("means.power_cap", share=share),
        source="audit.source.power", repeat="nvidia-smi -q -d POWER",
    )  # fmt: skip


def _slow(card: Card) -> bool:
    """Whether the card's own sustained rate is well under its short burst."""
    if card.soak is None or card.gemm is None:
        return False
    late = _late(card.soak)
    return late is not None and late < limit.GEMM_WARN * card.gemm.best


def early_and_late(soak: Soak) -> tuple[float, float] | None:
    """Median rate of seconds 5 to 15, and of the last minute (or the last third)."""
    early = [
        rate
        for second, rate in zip(soak.seconds, soak.flops_per_s, strict=True)
        if rate is not None and limit.EARLY_FROM <= second <= limit.EARLY_TO
    ]
    late = _late(soak)
    if len(early) < 3 or late is None:
        return None
    return statistics.median(early), late


def _late(soak: Soak) -> float | None:
    if not soak.seconds:
        return None
    end = soak.seconds[-1]
    start = end - min(limit.LATE_SECONDS, end / 3)
    rates = [
        rate
        for second, rate in zip(soak.seconds, soak.flops_per_s, strict=True)
        if rate is not None and second >= start
    ]
    return statistics.median(rates) if rates else None


def _drop(card: Card) -> Check:
    code, soak = "LRA-LOAD-SOAK", card.soak
    rates = early_and_late(soak) if soak else None
    if soak is None or rates is None:
        return unknown(code, GROUP, card, ("soak",), card.refusals)
    share = rates[1] / rates[0]
    hot = _share_of(soak.events, limit.THERMAL | limit.POWER_BRAKE) >= limit.THERMAL_SHARE
    steady = rates[1] / card.gemm.best if card.gemm else 1.0
    if share >= limit.SOAK_PASS:
        status = "pass" if steady >= limit.STEADY_SHARE else "warn"
    elif share < limit.SOAK_HARD or (share < limit.SOAK_WARN and hot):
        status = "fail"
    else:
        status = "warn"
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.soak", early_flops_per_s=rates[0], late_flops_per_s=rates[1], share=share,
                  soak_seconds=soak.seconds[-1]),
        expected=say("expected.share_at_least", share=limit.SOAK_PASS),
        means=_why_steady_is_low(status, share, steady),
        source="audit.source.soak", repeat="loracle audit --soak 10min",
    )  # fmt: skip


def _why_steady_is_low(status: str, share: float, steady: float) -> Hint | None:
    if status == "pass":
        return None
    if share >= limit.SOAK_PASS:
        return say("means.low_steady", share=steady)
    return say("means.soak_drop", loss_share=1 - share, longer_share=1 / share - 1)


def _thermal(card: Card) -> Check:
    code, soak = "LRA-LOAD-THERMAL", card.soak
    bits = [int(one) for one in soak.events if one is not None] if soak else []
    if not bits:
        return unknown(code, GROUP, card, ("soak", "events"), card.refusals)
    heat, brake = _share_of(bits, limit.THERMAL), _share_of(bits, limit.POWER_BRAKE)
    share = _share_of(bits, limit.THERMAL | limit.POWER_BRAKE)
    long_run = _longest_run(bits, limit.THERMAL | limit.POWER_BRAKE) >= limit.THERMAL_RUN
    if share >= limit.THERMAL_SHARE and long_run:
        status = "fail"
    else:
        status = "warn" if share > 0 else "pass"
    means = None
    if status != "pass":
        means = say("means.power_brake" if brake > heat else "means.thermal", share=share)
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.events", heat_share=heat, brake_share=brake,
                  cap_share=_share_of(bits, limit.POWER_CAP)),
        expected=say("expected.no_events"), means=means, source="NVML clock-event bits; DCGM mask",
        repeat="nvidia-smi -q -d PERFORMANCE",
    )  # fmt: skip


def _share_of(bits: Series | list[int], mask: int) -> float:
    known = [int(one) for one in bits if one is not None]
    return sum(bool(one & mask) for one in known) / len(known) if known else 0.0


def _longest_run(bits: list[int], mask: int) -> int:
    longest = run = 0
    for one in bits:
        run = run + 1 if one & mask else 0
        longest = max(longest, run)
    return longest


def _temperature(card: Card) -> Check:
    code, soak = "LRA-LOAD-TEMPERATURE", card.soak
    known = [one for one in soak.celsius if one is not None] if soak else []
    if soak is None or not known:
        return unknown(code, GROUP, card, ("soak", "celsius"), card.refusals)
    end = statistics.fmean(known[-5:])
    stopped = soak.stopped in ("hot", "hot_memory", "margin")
    if stopped or end >= limit.CELSIUS_FAIL:
        status = "fail"
    else:
        status = "pass" if end < limit.CELSIUS_PASS else "warn"
    means = say("means.stopped_hot", at_seconds=soak.seconds[-1], celsius=max(known))
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.celsius", celsius=end, peak_celsius=max(known)),
        expected=say("expected.celsius", celsius=limit.CELSIUS_PASS),
        means=None if status == "pass" else means if stopped else say("means.warm"),
        source="stas00/ml-engineering: under 80 is fine, throttling from 84-90",
        repeat="nvidia-smi -q -d TEMPERATURE",
    )  # fmt: skip


def _locked(card: Card) -> Check:
    """Somebody locked the clocks below the maximum."""
    code, soak = "LRA-LOAD-CLOCKS", card.soak
    bits = [int(one) for one in soak.events if one is not None] if soak else []
    if not bits:
        return unknown(code, GROUP, card, ("soak", "events"), card.refusals)
    locked = _share_of(bits, limit.APPLICATION_CLOCKS) > 0.5
    highest = max((one for one in soak.sm_mhz if one is not None), default=0.0) if soak else 0.0
    maximum = card.number("max_sm_mhz")
    below = bool(maximum) and highest < 0.9 * (maximum or 0)
    return Check(
        code=code, group=GROUP, status="warn" if locked and below else "pass", device=card.index,
        found=say("found.clock", sm_mhz=highest),
        expected=say("expected.clock", sm_mhz=maximum or 0.0),
        means=say("means.locked") if locked and below else None,
        source="NVML application-clocks bit", repeat="nvidia-smi -q -d CLOCK",
    )  # fmt: skip


def _xid(card: Card, case: Case) -> Check:
    code = "LRA-LOAD-XID"
    lost = "GpuIsLost" in card.refusals.values() or (card.soak and card.soak.stopped == "lost")
    numbers = [number for _, number in case.seen.xids]
    if lost and 79 not in numbers:
        numbers.append(79)
    if not numbers and (card.soak is None or "xids" in card.refusals):
        return unknown(code, GROUP, card, ("xids", "soak"), card.refusals)
    fatal = [one for one in numbers if one in limit.FATAL_XIDS]
    status = "fail" if fatal else "warn" if numbers else "pass"
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.xids", xids=", ".join(str(one) for one in numbers) or "-"),
        expected=say("expected.none"),
        means=say("means.lost" if lost else "means.xid") if numbers else None,
        source="Azure, imbue and gpud lists of fatal Xids", repeat="dmesg | grep -i xid",
    )  # fmt: skip
