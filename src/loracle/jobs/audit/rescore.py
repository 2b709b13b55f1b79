"""The measured card in the plan's place: new time and cost by the plan's own laws.

The plan's speed law is asked twice for the plan's setup, once for the card of the catalog and
once for the same card with its measured rates; the quotient moves the plan's training time, and
nothing else of its timeline. Two commands cannot disagree on the law, only on the card.
"""

from collections.abc import Sequence
from dataclasses import replace

from loracle.catalog.fingerprints import by_device_id, by_driver_name
from loracle.domain.audit import Rescore
from loracle.domain.estimate import Range
from loracle.domain.gpu import Gpu
from loracle.domain.money import FxRate
from loracle.domain.offer import Offer
from loracle.domain.plan import Candidate, Plan
from loracle.estimate.money import job_cost
from loracle.estimate.speed import estimate_speed
from loracle.estimate.storage import checkpoint_bytes, download_bytes, merged_bytes
from loracle.jobs.audit.judges.case import Needs
from loracle.jobs.audit.judges.load import early_and_late
from loracle.jobs.audit.judges.thresholds import DEFAULT_COPY_SHARE, STEADY_TYPICAL
from loracle.jobs.audit.observation import Card

SCALED_PHASES = ("train", "evaluate", "restarts")


def needs_of(plan: Plan, candidate: Candidate) -> Needs:
    """What a candidate of a plan asks of the machine."""
    setup = candidate.setup
    keep = 3
    save = plan.recipe.get("save")
    if isinstance(save, dict):
        keep = int(save.get("keep") or keep)
    # the newest checkpoints, the best one, and one that is being written
    written = (keep + 2) * checkpoint_bytes(setup) + merged_bytes(setup.model)
    return Needs(
        device_bytes=candidate.memory.device_bytes.likely,
        disk_bytes=download_bytes(setup.model) + written,
        num_gpus=candidate.num_gpus,
        moves_weights=setup.parallel == "fsdp",
        quantised=setup.quant is not None,
        card_id=candidate.gpu_id,
    )


def candidate_for(plan: Plan, gpu_ids: Sequence[str], num_gpus: int) -> Candidate | None:
    """The plan's best candidate on this card: as many cards as are here, else any number."""
    same = [one for one in plan.candidates if one.gpu_id in gpu_ids]
    exact = [one for one in same if one.num_gpus == num_gpus]
    return next(iter(exact or same), None)


def gpu_ids(card: Card) -> tuple[str, ...]:
    """Rows of the card catalog that this card may be, the one with its memory first."""
    known = by_device_id(card.device_id) or by_driver_name(card.name, card.total_bytes)
    return known.gpu_ids if known else ()


def measured_gpu(gpu: Gpu, card: Card) -> Gpu | None:
    """The catalog's card with this one's matrix rate and bandwidth; None if neither was measured.

    The matrix rate is the burst times what the soak kept of it, and what steady load keeps of a
    burst below what a healthy card does (a power limit bites at once, so the soak's early part
    does not know of it). Bandwidth can only be taken away: a copy faster than the published share
    does not make the card better than its sheet.
    """
    if card.gemm is None:
        return None
    kept = early_and_late(card.soak) if card.soak else None
    rate = card.gemm.best
    if kept:
        rate *= min(1.0, kept[1] / kept[0])
        rate *= min(1.0, kept[0] / (STEADY_TYPICAL * card.gemm.best))
    bandwidth = gpu.bandwidth_bytes_per_s
    if card.bandwidth is not None:
        known = by_device_id(card.device_id) or by_driver_name(card.name, card.total_bytes)
        share = (known.copy_share if known else None) or DEFAULT_COPY_SHARE
        bandwidth *= min(1.0, card.bandwidth.best / (share * gpu.bandwidth_bytes_per_s))
    rates = dict(gpu.gemm_flops_per_s) | {card.gemm.dtype: rate}
    return replace(gpu, gemm_flops_per_s=rates, bandwidth_bytes_per_s=bandwidth)


def rescore(
    plan: Plan,
    candidate: Candidate,
    gpu: Gpu,
    cards: Sequence[Card],
    *,
    offer: Offer | None,
    rates: tuple[FxRate, ...],
    today: str,
) -> Rescore | None:
    """The candidate's time and cost on the measured cards: the slowest of them sets the pace."""
    if candidate.speed is None:
        return None
    slowest: float | None = None
    bound = candidate.speed.bound
    catalog_speed = estimate_speed(candidate.setup, gpu).tokens_per_s.likely
    for card in cards:
        as_measured = measured_gpu(gpu, card)
        if as_measured is None:
            continue
        found = estimate_speed(candidate.setup, as_measured)
        if slowest is None or found.tokens_per_s.likely < slowest:
            slowest, bound = found.tokens_per_s.likely, found.bound
    if slowest is None:
        return None
    share = slowest / catalog_speed
    seconds = Range.exact(0)
    for phase in candidate.timeline:
        longer = 1 / share if phase.id in SCALED_PHASES else 1.0
        seconds = seconds.plus(phase.seconds.scaled(longer))
    planned = candidate.speed.tokens_per_s.likely
    costs: dict[str, str | None] = {}
    if candidate.cost is not None and offer is not None:
        before = candidate.cost
        after = job_cost(
            offer, before.term, seconds, rates=rates, currency=before.likely.currency, today=today
        )
        costs = {
            "planned_cost": str(before.likely.amount),
            "measured_cost": str(after.likely.amount),
            "currency": before.likely.currency,
        }
    return Rescore(
        gpu_id=gpu.id,
        speed_share=share,
        planned_tokens_per_s=planned,
        measured_tokens_per_s=planned * share,
        planned_seconds=candidate.seconds.likely,
        measured_seconds=seconds.likely,
        limited_by=bound,
        **costs,
    )
