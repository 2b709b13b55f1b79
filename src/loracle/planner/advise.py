"""The verdict and the advice of a plan, as message ids with numbers.

A hint is worth its line where it names a number that the reader can act on: the knob that makes a
cheaper card do, what a longer term saves, how much of a month the job leaves unused. The most
useful come first; interfaces show as many as they have room for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from loracle.domain.money import Money, convert
from loracle.domain.offer import HOURS_IN_TERM, MONTHS_IN_TERM, Offer
from loracle.domain.plan import Candidate, Hint, Plan
from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.estimate.money import break_even_hours, offered_terms, period_price
from loracle.planner.cost import Market, budget_of, cheapest_cost
from loracle.planner.laws import Laws
from loracle.planner.packing_advice import packing_hints
from loracle.planner.resolve import on_card
from loracle.planner.seat import Seat
from loracle.planner.work import Workload

if TYPE_CHECKING:
    from loracle.planner.knobs import Turn

MOST_CARDS_TRIED = 3  # each costs dozens of estimates
NOTICEABLE_CUT = 0.01
NOTICEABLE_DOWNLOAD = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """All that advice is made from."""

    plan: Plan
    recipe: Recipe
    seats: Sequence[Seat]
    work: Workload
    laws: Laws
    market: Market

    @property
    def best(self) -> Candidate | None:
        """The recommended candidate."""
        return None if self.plan.best is None else self.plan.candidates[self.plan.best]


def verdict(plan: Plan, recipe: Recipe) -> Hint:
    """The answer in one sentence: what to rent, or why nothing can be recommended."""
    if plan.best is not None:
        best = plan.candidates[plan.best]
        values = {
            "gpu_id": best.gpu_id,
            "num_gpus": best.num_gpus,
            "seconds": best.seconds.likely,
            "offer_id": best.offer_id,
        }
        if best.cost is None:
            return Hint(id="verdict.rent_unpriced", values=values)
        money = {"cost": best.cost.likely.amount, "currency": best.cost.likely.currency}
        return Hint(id="verdict.rent", values={**values, **money, "term": best.cost.term})
    fitting = [one for one in plan.candidates if one.fit in ("fits", "tight")]
    if any("late" in one.labels for one in fitting):
        soonest = min(fitting, key=lambda one: one.seconds.likely)
        return Hint(
            id="verdict.late",
            values={"gpu_id": soonest.gpu_id, "num_gpus": soonest.num_gpus,
                    "seconds": soonest.seconds.likely, "deadline": recipe.rent.deadline},
        )  # fmt: skip
    if any("over_budget" in one.labels for one in fitting):
        priced = [one for one in fitting if one.cost is not None]
        least = min(priced, key=lambda one: one.cost.likely.amount)  # type: ignore[union-attr]
        assert least.cost is not None
        return Hint(
            id="verdict.over_budget",
            values={"gpu_id": least.gpu_id, "num_gpus": least.num_gpus,
                    "cost": least.cost.likely.amount, "currency": least.cost.likely.currency,
                    "budget": recipe.rent.budget},
        )  # fmt: skip
    largest = max(plan.candidates, key=lambda one: one.usable_bytes * one.num_gpus)
    if fitting:
        return Hint(id="verdict.none_recommended", values={"count": len(fitting)})
    return Hint(
        id="verdict.nothing_fits",
        values={"need_bytes": largest.memory.device_bytes.likely,
                "usable_bytes": largest.usable_bytes, "gpu_id": largest.gpu_id,
                "num_gpus": largest.num_gpus},
    )  # fmt: skip


def advise(session: Session) -> tuple[Hint, ...]:
    """All hints, the most useful first."""
    return (
        *_several_hints(session),
        *packing_hints(session.recipe, session.seats, session.plan.data),
        *_data_hints(session),
        *_knob_hints(session),
        *_fill_hints(session),
        *_budget_hints(session),
        *_term_hints(session),
        *_slice_hints(session),
        *_timeline_hints(session),
        *_price_hints(session),
    )


def _several_hints(session: Session) -> Iterator[Hint]:
    best = session.best
    if best is not None and best.offer_id is not None and "*" in best.offer_id:
        single = best.offer_id.partition("*")[0]
        yield Hint(
            id="advice.several",
            values={"num_gpus": best.num_gpus, "gpu_id": best.gpu_id, "offer_id": single},
        )


def _data_hints(session: Session) -> Iterator[Hint]:
    data, recipe, seq_len = session.plan.data, session.recipe, session.recipe.training.seq_len
    if data.counted_by == "given" and recipe.data.tokens is None:
        yield Hint(id="advice.no_data", values={"tokens": data.tokens.likely})
    if data.cut_share >= NOTICEABLE_CUT:
        yield Hint(
            id="advice.cut",
            values={"share": data.cut_share, "seq_len": seq_len,
                    "longest": data.length_percentiles.get(100, 0)},
        )  # fmt: skip
    if data.bad_rows:
        yield Hint(id="advice.bad_rows", values={"count": data.bad_rows})
    limit = session.plan.setup.model.max_positions
    if limit is not None and seq_len > limit:
        yield Hint(id="advice.beyond_positions", values={"seq_len": seq_len, "limit": limit})


def _knob_hints(session: Session) -> Iterator[Hint]:
    """For cards that do not hold the job and would be cheaper (or any, where nothing fits)."""
    tried: set[tuple[str, int]] = set()
    too_small = [
        seat
        for seat in session.seats
        if seat.candidate.fit in ("no", "risky") and seat.place.isolated
    ]
    for seat in sorted(too_small, key=_month_price):
        key = (seat.candidate.gpu_id, seat.place.num_gpus)
        if key in tried:
            continue
        if not _would_be_cheaper(seat, session) or len(tried) >= MOST_CARDS_TRIED:
            continue
        tried.add(key)
        from loracle.planner.knobs import turn_until_it_fits  # only where something is too small

        setup = on_card(session.plan.setup, seat.place.gpu)
        turn = turn_until_it_fits(
            session.recipe, setup, seat.place, session.plan.data, session.laws
        )
        if turn is not None:
            yield _knob_hint(seat, turn, session)
            return


def _knob_hint(seat: Seat, turn: "Turn", session: Session) -> Hint:
    speed = turn.choice.speed
    assert speed is not None
    seconds = speed.step_seconds.scaled(turn.work.num_steps)
    values: dict[str, object] = {
        "gpu_id": seat.candidate.gpu_id,
        "num_gpus": seat.place.num_gpus,
        "offer_id": seat.candidate.offer_id,
        "knobs": turn.knobs,
        "set": [f"{key}={value}" for key, value in turn.assignments],
        "train_seconds": seconds.likely,
        "slowdown": turn.slowdown,
        "cut_share": turn.cut_share,
        "need_bytes": turn.choice.memory.device_bytes.likely,
    }
    if seat.place.offer is not None:
        cost = cheapest_cost(seat.place.offer, seconds, session.market)
        if cost is not None:
            values |= {"cost": cost.likely.amount, "currency": cost.likely.currency}
            return Hint(id="advice.knob", values=values)
    return Hint(id="advice.knob_unpriced", values=values)


def _would_be_cheaper(seat: Seat, session: Session) -> bool:
    best = next((one for one in session.seats if one.candidate.rank == 1), None)
    return best is None or _month_price(seat) < _month_price(best)


def _month_price(seat: Seat) -> float:
    """Price of a month, in the offer's own currency; infinite without an offer."""
    offer = seat.place.offer
    if offer is None:
        return float("inf")
    shortest = offered_terms(offer)[0]
    return float(period_price(offer, shortest).per_month.amount)


def _fill_hints(session: Session) -> Iterator[Hint]:
    best = session.best
    if best is None or best.filled is None or best.speed is None:
        return
    filled = best.filled
    yield Hint(
        id="advice.fill",
        values={
            "gpu_id": best.gpu_id,
            "gain": filled.gain,
            "set": list(changed_keys(best, filled.setup)),
            "tokens_per_s": filled.tokens_per_s.likely,
            "baseline_tokens_per_s": best.speed.tokens_per_s.likely,
            "device_bytes": filled.device_bytes.likely,
            "usable_bytes": best.usable_bytes,
        },
    )


def changed_keys(candidate: Candidate, setup: TrainingSetup) -> Iterator[str]:
    """`key=value` of the recipe keys that turn the candidate's setup into another."""
    old = candidate.setup
    if setup.micro_batch != old.micro_batch:
        yield f"training.micro_batch={setup.micro_batch}"
    if (setup.gradient_checkpointing, setup.checkpoint_every) != (
        old.gradient_checkpointing, old.checkpoint_every,
    ):  # fmt: skip
        every = setup.checkpoint_every
        value = "false" if not setup.gradient_checkpointing else "true" if every == 1 else every
        yield f"training.gradient_checkpointing={value}"
    if setup.attention != old.attention:
        yield f"training.attention={setup.attention}"
    if setup.packing != old.packing:
        yield f"training.packing={str(setup.packing).lower()}"


def _budget_hints(session: Session) -> Iterator[Hint]:
    budget = budget_of(session.recipe)
    if budget is not None and budget.period != "total":
        from loracle.planner.budget import spend_the_rest  # most plans have no such budget

        yield from spend_the_rest(budget, session.seats, session.market)


def _term_hints(session: Session) -> Iterator[Hint]:
    """What a longer term saves a month, and how much of the billed time the job uses."""
    best = session.best
    seat = next((seat for seat in session.seats if seat.candidate.rank == 1), None)
    if best is None or best.cost is None or seat is None or seat.place.offer is None:
        return
    offer = seat.place.offer
    monthly = _per_month(offer, "month")
    for term in ("quarter", "year"):
        longer = _per_month(offer, term)
        if monthly is None or longer is None or not longer < monthly:
            continue
        yield Hint(
            id="advice.longer_term",
            values={"offer_id": offer.id, "term": term, "per_month": longer.amount,
                    "instead": monthly.amount, "saves": (monthly - longer).amount,
                    "currency": longer.currency, "months": MONTHS_IN_TERM[term]},
        )  # fmt: skip
    if best.cost.period == "hour":
        yield from _break_even_hint(offer, session)
    billed_hours = best.cost.billed_periods.likely * HOURS_IN_TERM[best.cost.period]
    used_hours = best.seconds.likely / 3600
    if best.cost.period in MONTHS_IN_TERM and used_hours < billed_hours / 2:
        yield Hint(
            id="advice.unused",
            values={"used_hours": used_hours, "billed_hours": billed_hours,
                    "jobs": int(billed_hours // used_hours),
                    "hour_price": best.cost.likely.amount / Decimal(str(used_hours)),
                    "currency": best.cost.likely.currency},
        )  # fmt: skip


def _break_even_hint(offer: Offer, session: Session) -> Iterator[Hint]:
    """From how many hours a month the same card by the month is the cheaper one."""
    by_month = [
        (_in_answer(price, session), seat.place.offer)
        for seat in session.seats
        if seat.place.offer is not None
        and seat.candidate.rank is not None
        and seat.place.node.gpu_id == offer.node.gpu_id
        and seat.place.num_gpus == offer.node.num_gpus
        and (price := _per_month(seat.place.offer, "month")) is not None
    ]
    if not by_month:
        return
    price, monthly = min(by_month, key=lambda one: one[0].amount)
    hours = break_even_hours(
        period_price(offer, "hour"), period_price(monthly, "month"), rates=session.market.rates
    )
    values = {"offer_id": monthly.id, "per_month": price.amount, "currency": price.currency}
    used = session.recipe.rent.hours_per_month
    if used is not None:
        hourly = _in_answer(period_price(offer, "hour").amount, session)
        spent = (hourly * Decimal(str(used))).rounded()
        yield Hint(
            id="advice.at_your_hours",
            values={"hours": used, "cost": spent.amount, "hour_offer": offer.id, **values},
        )
        return
    if hours is None:
        yield Hint(id="advice.never_by_month", values=values)
    else:
        yield Hint(id="advice.by_month_from", values={"hours": float(hours), **values})


def _in_answer(money: Money, session: Session) -> Money:
    return convert(money, session.market.currency, session.market.rates)


def _per_month(offer: Offer, term: str) -> Money | None:
    return period_price(offer, term).per_month if term in offered_terms(offer) else None


def _slice_hints(session: Session) -> Iterator[Hint]:
    """A slice that cannot train, with what it lacks; a slice that others share."""
    for seat in session.seats:
        one = seat.candidate
        if one.share == "whole":
            continue
        values = {"offer_id": one.offer_id, "gpu_id": one.gpu_id,
                  "usable_bytes": one.usable_bytes,
                  "weights_bytes": one.memory.model_bytes,
                  "need_bytes": one.memory.device_bytes.likely}  # fmt: skip
        if one.fit in ("no", "risky"):
            yield Hint(id="advice.slice_too_small", values=values)
        elif not seat.place.isolated:
            yield Hint(id="advice.slice_shared", values=values)


def _timeline_hints(session: Session) -> Iterator[Hint]:
    best = session.best
    if best is None:
        return
    phases = {phase.id: phase.seconds.likely for phase in best.timeline}
    share = phases.get("download", 0) / best.seconds.likely
    if share >= NOTICEABLE_DOWNLOAD:
        yield Hint(
            id="advice.download", values={"seconds": phases["download"], "share": share}
        )  # fmt: skip


def _price_hints(session: Session) -> Iterator[Hint]:
    best = session.best
    if best is None or best.cost is None:
        return
    seat = next(seat for seat in session.seats if seat.candidate.rank == 1)
    offer = seat.place.offer
    assert offer is not None
    kind = ("estimated" if best.cost.estimated else "") + ("stale" if best.cost.stale else "")
    if kind:
        yield Hint(
            id=f"advice.{kind}",
            values={
                "offer_id": offer.id.partition("*")[0],
                "date": offer.as_of,
                "source": offer.source,
            },
        )
    native = best.cost.unit_price
    if native.currency != session.market.currency:
        rate = convert(Money.of(1, native.currency), session.market.currency, session.market.rates)
        dates = [fx.date for fx in session.market.rates if {fx.base, fx.quote}
                 == {native.currency, session.market.currency}]  # fmt: skip
        yield Hint(
            id="advice.rate",
            values={"base": native.currency, "quote": session.market.currency,
                    "rate": rate.amount, "date": dates[0] if dates else ""},
        )  # fmt: skip
