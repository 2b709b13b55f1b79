"""`make_plan`: from a recipe and the facts to the one `Plan` that every command works with.

The order is that of the questions people ask: how much work is it, where could it run, does it
fit there and with which settings, how long, how much, which is best, and what would be better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from loracle.domain.gpu import Gpu
from loracle.domain.model import ModelShape
from loracle.domain.money import FxRate
from loracle.domain.offer import Offer
from loracle.domain.plan import Candidate, DataFacts, Filled, Hint, Plan
from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.errors import EngineError, InputError
from loracle.estimate.storage import checkpoint_bytes, download_bytes, merged_bytes
from loracle.planner.advise import Session, advise, verdict
from loracle.planner.cost import Market, budget_of, cheapest_cost
from loracle.planner.fill import checkpoint_variants, fill
from loracle.planner.fit import Choice, choose, safest_then_fastest, usual_setup
from loracle.planner.laws import Laws, formula_laws
from loracle.planner.place import Place, places, several
from loracle.planner.rank import rank
from loracle.planner.resolve import on_card, resolve
from loracle.planner.seat import Seat
from loracle.planner.timeline import Bytes, EvalWork, timeline
from loracle.planner.work import Workload, given_tokens, workload
from loracle.units import parse_seconds

if TYPE_CHECKING:
    from loracle.planner.exact import Tracer

UNIT_TOKENS = 1_000_000  # an epoch where the recipe names no data: figures per million tokens
HIGH_RISKS = ("risk.home_host",)  # recommended only where the recipe names the offer
MOST_DRY_RUNS = 3  # each takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a plan needs to know besides the recipe. `wanted` are card ids, empty for all."""

    shape: ModelShape
    gpus: Sequence[Gpu]
    offers: Sequence[Offer]
    rates: tuple[FxRate, ...]
    today: str  # ISO date
    data: DataFacts | None = None
    eval_data: DataFacts | None = None
    wanted: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def make_plan(
    recipe: Recipe,
    facts: Facts,
    *,
    laws: Laws | None = None,
    tracer: "Tracer | None" = None,
    fill_cards: int | None = None,
) -> Plan:
    """The plan of a recipe.

    Settings and cards are searched with `laws`, the formula by default. With a `tracer`, the
    recommended one is dry-run, and the plan shows that engine's figures for it; where the dry run
    finds that it does not fit, the next one is. The fastest setting is sought for the first
    `fill_cards` candidates, by default for all.

    Raises RecipeError E014 (the model cannot do what the recipe asks) and InputError E017 (no rate
    for the budget's or the answer's currency). A job that fits nowhere is a plan without `best`.
    """
    laws = laws or formula_laws()
    setup = resolve(recipe, facts.shape)
    data = facts.data or given_tokens(recipe.data.tokens or UNIT_TOKENS)
    market = Market(facts.rates, recipe.rent.currency, facts.today)
    found = places(
        facts.gpus, facts.offers, wanted=facts.wanted, max_gpus=recipe.rent.max_gpus
    )  # fmt: skip
    seats = _seats(recipe, setup, found, data, facts, laws, market)
    if not any(seat.choice.fit in ("fits", "tight") and seat.place.isolated for seat in seats):
        more = several(found, recipe.rent.max_gpus)
        seats += _seats(recipe, setup, more, data, facts, laws, market)
    if not seats:
        raise InputError("plan.nowhere", code="E032", hint="hint.nowhere")
    prices_matter = any(seat.candidate.cost is not None for seat in seats)
    seated = _ranked(recipe, seats, market, prices_matter)
    refused: tuple[Hint, ...] = ()
    if tracer is not None:
        seated, refused = _dry_run_best(recipe, seated, facts, laws, market, tracer, prices_matter)
    seated = _filled(recipe, seated, data, laws, fill_cards)
    plan = _assemble(recipe, facts, setup, data, seated, laws, market)
    return replace(plan, hints=(*refused, *plan.hints))


def _assemble(
    recipe: Recipe,
    facts: Facts,
    setup: TrainingSetup,
    data: DataFacts,
    seated: list[Seat],
    laws: Laws,
    market: Market,
) -> Plan:
    candidates = tuple(seat.candidate for seat in seated)
    first = seated[0]  # the best, where one is
    work = first.work
    usual = usual_setup(first.choice.setup, first.place, work)
    best = 0 if candidates[0].rank == 1 else None
    plan = Plan(
        recipe=recipe.model_dump(mode="json"),
        setup=setup,
        data=data,
        num_steps=work.num_steps,
        total_tokens=work.tokens.scaled(usual.seq_len / work.mean_len),
        memory=candidates[0].memory,
        candidates=candidates,
        verdict=Hint(id="verdict.none"),
        best=best,
        epochs=work.epochs,
        engine=candidates[0].memory.engine,
        as_of=facts.today,
        versions=facts.versions,
    )
    plan = replace(plan, verdict=verdict(plan, recipe))
    session = Session(
        plan=plan, recipe=recipe, seats=seated, work=work, laws=laws, market=market
    )  # fmt: skip
    return replace(
        plan, verdict=_plain(plan.verdict), hints=tuple(_plain(hint) for hint in advise(session))
    )


def _ranked(
    recipe: Recipe, seats: Sequence[Seat], market: Market, prices_matter: bool
) -> list[Seat]:
    """The seats in the order of recommendation, their candidates labelled."""
    plain = [replace(seat.candidate, labels=_labels(recipe, seat.place)) for seat in seats]
    ranked = rank(
        [replace(one, rank=None, dominated_by=None) for one in plain],
        budget=budget_of(recipe),
        deadline_seconds=parse_seconds(recipe.rent.deadline) if recipe.rent.deadline else None,
        market=market,
        prices_matter=prices_matter,
    )
    return _seated(ranked, seats)


def _dry_run_best(
    recipe: Recipe,
    seated: list[Seat],
    facts: Facts,
    laws: Laws,
    market: Market,
    tracer: "Tracer",
    prices_matter: bool,
) -> tuple[list[Seat], tuple[Hint, ...]]:
    """Dry-run the recommended seat until the one on top has stood it.

    The second value says why the formula's figures stay, where the engine gave up.
    """
    for _ in range(MOST_DRY_RUNS):
        best = seated[0]
        if best.candidate.rank is None or best.candidate.memory.engine == "dryrun":
            break
        from loracle.planner.exact import exact_choice  # only where torch has been at work

        try:
            choice = exact_choice(best.choice, best.place, best.work, tracer, laws)
        except EngineError as error:
            values = {name: str(value) for name, value in error.values.items()}
            reason = Hint(id="advice.no_dry_run", values={"message": error.message, **values})
            return seated, (reason,)
        seat = _seat_of(recipe, choice, best.place, best.work, facts, market)
        seated = _ranked(recipe, [seat, *seated[1:]], market, prices_matter)
    return seated, ()


def _filled(
    recipe: Recipe,
    seated: Sequence[Seat],
    data: DataFacts,
    laws: Laws,
    most: int | None,
) -> list[Seat]:
    """The seats with the fastest setting of each, for the first `most` of those recommended."""
    found: dict[object, Filled | None] = {}
    last = len(seated) if most is None else most
    done = []
    for seat in seated[:last]:
        if seat.candidate.rank is None:
            done.append(seat)
            continue
        key = (seat.place.alike, seat.candidate.memory.engine)
        if key not in found:
            found[key] = fill(recipe, seat.choice, seat.place, seat.work, data, laws)
        done.append(replace(seat, candidate=replace(seat.candidate, filled=found[key])))
    return [*done, *seated[last:]]


def _plain(hint: Hint) -> Hint:
    """The hint with values as JSON has them, so that a plan reads back equal."""
    values = {
        name: str(value)
        if isinstance(value, Decimal)
        else list(value)
        if isinstance(value, tuple)
        else value
        for name, value in hint.values.items()
    }
    return replace(hint, values=values)


def _seats(
    recipe: Recipe,
    setup: TrainingSetup,
    found: Sequence[Place],
    data: DataFacts,
    facts: Facts,
    laws: Laws,
    market: Market,
) -> list[Seat]:
    """A seat for each place that can share the batch; places that are alike share the search.

    The work is that of the card: some models pack on newer ones only.
    """
    chosen: dict[object, Choice | None] = {}
    seats = []
    works = {packing: workload(recipe, data, packing=packing) for packing in (True, False)}
    for place in found:
        setup_here = on_card(setup, place.gpu)
        work = works[setup_here.packing]
        if place.alike not in chosen:
            chosen[place.alike] = _choice(recipe, setup_here, place, work, laws)
        choice = chosen[place.alike]
        if choice is not None:
            seats.append(_seat_of(recipe, choice, place, work, facts, market))
    return seats


def _seat_of(
    recipe: Recipe,
    choice: Choice,
    place: Place,
    work: Workload,
    facts: Facts,
    market: Market,
) -> Seat:
    candidate = Candidate(
        rank=None,
        gpu_id=place.node.gpu_id,
        num_gpus=place.num_gpus,
        offer_id=place.offer.id if place.offer else None,
        setup=choice.setup,
        usable_bytes=place.gpu.usable_bytes,
        memory=choice.memory,
        fit=choice.fit,
        speed=choice.speed,
        labels=_labels(recipe, place),
        share=place.node.share,
    )
    if choice.speed is not None:
        candidate = _timed(recipe, candidate, place, work, facts, market)
    return Seat(place=place, choice=choice, work=work, candidate=candidate)


def _choice(
    recipe: Recipe, setup: TrainingSetup, place: Place, work: Workload, laws: Laws
) -> Choice | None:
    asked = recipe.training.micro_batch
    micro_batch = None if asked == "auto" else asked
    if recipe.training.gradient_checkpointing != "auto":
        return choose(setup, place, work, laws, micro_batch=micro_batch)
    found = [
        choice
        for variant in checkpoint_variants(setup)
        if (choice := choose(variant, place, work, laws, micro_batch=micro_batch)) is not None
    ]
    return safest_then_fastest(found) if found else None


def _timed(
    recipe: Recipe,
    candidate: Candidate,
    place: Place,
    work: Workload,
    facts: Facts,
    market: Market,
) -> Candidate:
    assert candidate.speed is not None
    phases = timeline(
        work,
        candidate.speed,
        place.node,
        _moved(candidate.setup),
        num_checkpoints=num_checkpoints(recipe, work),
        evaluation=_evaluation(recipe, work, facts.eval_data),
        data_tokens=(facts.data or given_tokens(UNIT_TOKENS)).tokens.likely,
    )
    candidate = replace(candidate, timeline=phases)
    if place.offer is None:
        return candidate
    return replace(candidate, cost=cheapest_cost(place.offer, candidate.seconds, market))


def num_checkpoints(recipe: Recipe, work: Workload) -> int:
    """Checkpoints written in the whole run, the last one included."""
    every = recipe.save.every_steps
    return 1 + (work.num_steps // every if every else 0)


def _evaluation(recipe: Recipe, work: Workload, eval_data: DataFacts | None) -> EvalWork:
    """Passes over the held-out set: during training, then base, adapter and merged model."""
    if eval_data is None:
        return EvalWork()
    every = recipe.evaluation.every_steps
    during = work.num_steps // every if every else max(1, round(work.epochs))
    after = 3 if recipe.method != "full" else 2
    return EvalWork(tokens=eval_data.tokens.likely, passes=during + after)


def _moved(setup: TrainingSetup) -> Bytes:
    return Bytes(
        download=download_bytes(setup.model),
        checkpoint=checkpoint_bytes(setup),
        merged=merged_bytes(setup.model) if setup.method != "full" else 0,
    )


def _labels(recipe: Recipe, place: Place) -> tuple[str, ...]:
    labels = []
    if not place.isolated:
        labels.append("shared")
    offer = place.offer
    if offer is not None and offer.risk in HIGH_RISKS and offer.id not in recipe.rent.offers:
        labels.append("high_risk")
    return tuple(labels)


def _seated(ranked: Sequence[Candidate], seats: Sequence[Seat]) -> list[Seat]:
    """The seats in the order of their ranked candidates."""
    by_place = {_key(seat.candidate): seat for seat in seats}
    return [replace(by_place[_key(one)], candidate=one) for one in ranked]


def _key(one: Candidate) -> tuple[str | None, str, int]:
    return one.offer_id, one.gpu_id, one.num_gpus
