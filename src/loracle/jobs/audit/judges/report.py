"""All judges, in the order of the report."""

from collections.abc import Iterator

from loracle import __version__
from loracle.catalog.fingerprints import table_date
from loracle.domain.audit import AuditReport, CardFacts, Check, Rescore, SoakCurve
from loracle.jobs.audit.judges import host, identity, links, load, memory, paths, share, software
from loracle.jobs.audit.judges.case import Case
from loracle.jobs.audit.judges.verdict import keep, limits, questions, verdict
from loracle.jobs.audit.nvml import digest
from loracle.jobs.audit.observation import Card


def judge(
    case: Case, *, replayed: str | None = None, rescore: Rescore | None = None
) -> AuditReport:
    """The report on one observation. Pure: the same case gives the same report."""
    checks = tuple(all_checks(case))
    seen = case.seen
    return AuditReport(
        started_at=seen.started_at,
        seconds=seen.seconds,
        sold=case.sold.text if case.sold else None,
        mode="quick" if case.quick else "full",
        cards=tuple(_facts(card, case) for card in seen.cards),
        checks=checks,
        verdict=verdict(checks, case),
        keep=keep(checks, case),
        machine_hash=_machine_hash(case),
        soak=tuple(_curve(card) for card in seen.cards if card.soak),
        questions=questions(case),
        limits=limits(case),
        software=_software(case),
        versions={"loracle": __version__, "fingerprints": table_date()},
        replayed=replayed,
        rescore=rescore,
        measured={str(card.index): _figures(card) for card in seen.cards},
    )


def all_checks(case: Case) -> Iterator[Check]:
    """Every check: cards one by one, then what belongs to the machine."""
    for card in case.seen.cards:
        yield from identity.judge(card, case)
    if case.seen.cards or case.seen.paths.nvidia_smi == "script":
        yield from paths.judge(case)
    for card in case.seen.cards:
        yield from share.judge(card, case)
    if case.seen.cards:
        yield from share.judge_machine(case)
    for card in case.seen.cards:
        yield from memory.judge(card, case)
        yield from load.judge(card, case)
        yield from links.judge(card, case)
    if case.seen.cards:
        yield from links.judge_machine(case)
    yield from host.judge(case)
    yield from software.judge(case)


def _facts(card: Card, case: Case) -> CardFacts:
    claimed = case.claimed(card)
    return CardFacts(
        device=card.index,
        name=card.name or "?",
        fingerprint_id=claimed.id if claimed else None,
        uuid_hash=card.text("uuid_hash"),
        device_id=card.device_id,
        num_sms=card.cuda.num_sms if card.cuda else None,
        memory_bytes=card.total_bytes,
        driver=case.seen.software.driver,
    )


def _curve(card: Card) -> SoakCurve:
    soak = card.soak
    assert soak is not None
    return SoakCurve(
        device=card.index,
        seconds=soak.seconds,
        flops_per_s=soak.flops_per_s,
        sm_mhz=soak.sm_mhz,
        celsius=soak.celsius,
        memory_celsius=soak.memory_celsius,
        watts=soak.watts,
        events=tuple(None if one is None else int(one) for one in soak.events),
        stopped=soak.stopped,
    )


def _machine_hash(case: Case) -> str:
    """The same for a second rental of the same machine: hashed UUIDs, ids and sizes."""
    parts = [
        f"{card.text('uuid_hash')}/{card.device_id}/{card.total_bytes}" for card in case.seen.cards
    ]
    return digest("|".join(sorted(parts)))


def _software(case: Case) -> dict[str, str]:
    software = case.seen.software
    named = {
        "python": software.python, "driver": software.driver, "driver_cuda": software.driver_cuda,
        "torch": software.torch, "torch_cuda": software.torch_cuda,
    }  # fmt: skip
    return {key: value for key, value in named.items() if value} | dict(software.packages)


def _figures(card: Card) -> dict[str, float]:
    """The figures that belong into a card's row of the catalog."""
    sustained = load.early_and_late(card.soak) if card.soak else None
    figures: dict[str, float | None] = {
        "gemm_flops_per_s": card.gemm.best if card.gemm else None,
        "sustained_flops_per_s": sustained[1] if sustained else None,
        "fp16_flops_per_s": card.fp16.best if card.fp16 else None,
        "fp32_flops_per_s": card.fp32.best if card.fp32 else None,
        "fp64_flops_per_s": card.fp64.best if card.fp64 else None,
        "copy_bytes_per_s": card.bandwidth.best if card.bandwidth else None,
        "context_bytes": card.context_bytes,
        "free_bytes": _number(card.part("memory", "free_bytes")),
    }
    if card.copies and card.copies.to_device and card.copies.to_host:
        figures["host_to_device_bytes_per_s"] = card.copies.to_device.best
        figures["device_to_host_bytes_per_s"] = card.copies.to_host.best
    return {key: float(value) for key, value in figures.items() if value is not None}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
