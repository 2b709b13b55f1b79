"""Claims that are rules of choice: what the planner itself would choose in the same situation."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal

from loracle.domain.estimate import Range
from loracle.domain.gpu import Node
from loracle.domain.plan import Plan
from loracle.domain.recipe import Recipe
from loracle.estimate.money import break_even_hours, period_price
from loracle.planner.claims.figures import MODELS, Bench, Figure, between_cards
from loracle.planner.claims.memory import FULL, LORA, fewest_cards
from loracle.planner.fit import fit_of
from loracle.planner.knobs import turn_until_it_fits
from loracle.planner.place import Place, part_of
from loracle.planner.work import given_tokens
from loracle.units import GIB

USUAL = {"seq_len": 2048, "micro_batch": 4, "grad_accum": 4}


def _classes(bench: Bench) -> Mapping[str, Figure]:
    """Memory that each kind of job needs: which class of card is the smallest that holds it."""
    figures = {}
    for name, size, seq_len in (
        ("7b_gib", "7b", 2048), ("13b_gib", "13b", 2048), ("33b_gib", "33b", 2048),
        ("8k_gib", "7b", 8192),
    ):  # fmt: skip
        device = bench.device_bytes(bench.setup(size, seq_len=seq_len))
        how = f"{size.upper()} QLoRA, 1 x {seq_len}"
        figures[name] = Figure(device.scaled(1 / GIB), how)
    return figures


def _worth_of_4090(bench: Bench) -> Mapping[str, Figure]:
    """The monthly price at which a 4090 buys as many tokens per yuan as the other card."""
    setup = bench.setup("13b", **USUAL)
    figures = {}
    for name, card, offer_id in (
        ("worth_against_3090", "rtx-3090", "idc10000-3090"),
        ("worth_against_a100", "a100-40gb-pcie", "idc10000-a100-40g"),
    ):
        price = float(period_price(bench.offers[offer_id], "month").amount.amount)
        faster = between_cards(
            bench.tokens_per_s(setup, "rtx-4090"), bench.tokens_per_s(setup, card)
        )
        how = f"13B QLoRA 4 x 2048, {faster.likely:.2f} x the speed at {price:,.0f} a month"
        figures[name] = Figure(faster.scaled(price), how)
    return figures


def _a100_for_7b(bench: Bench) -> Mapping[str, Figure]:
    prices = [
        period_price(bench.offers[one], "month").amount.amount
        for one in ("idc10000-a100-40g", "idc10000-3090")
    ]
    setup = bench.setup("7b", **USUAL)
    faster = between_cards(
        bench.tokens_per_s(setup, "a100-40gb-pcie"), bench.tokens_per_s(setup, "rtx-3090")
    )
    return {
        "price_ratio": Figure(Range.exact(float(prices[0] / prices[1])), "by the month"),
        "speedup_7b": Figure(faster, "7B QLoRA, 4 x 2048"),
    }


def _terms(bench: Bench) -> Mapping[str, Figure]:
    hourly = period_price(bench.offers["autodl-4090"], "hour")
    monthly = period_price(bench.offers["shenzhen-4090"], "month")
    hours = break_even_hours(hourly, monthly, rates=bench.rates)
    a100 = bench.offers["idc10000-a100-40g"]
    year = period_price(a100, "year")
    months = year.billing_total.amount / period_price(a100, "month").amount.amount
    return {
        "hour_until_h": Figure(
            Range.exact(float(hours if hours is not None else Decimal(730))),
            "4090: 2.72 an hour against 1,880 a month",
        ),
        "year_from_months": Figure(Range.exact(float(months)), "A100 40G by the year and by month"),
    }


def plan_for(bench: Bench, recipe: Mapping[str, object], offers: tuple[str, ...]) -> Plan:
    """A plan over some of the offers, at the bench's date."""
    from loracle.planner.plan import Facts, make_plan

    full = Recipe.model_validate({"data": {"tokens": 2_000_000}, **recipe})
    size = next(size for size, name in MODELS.items() if name == full.model)
    facts = Facts(
        shape=bench.models[size],
        gpus=tuple(bench.gpus.values()),
        offers=tuple(bench.offers[one] for one in offers),
        rates=bench.rates,
        today=bench.today,
    )
    return make_plan(full, facts, laws=bench.laws)


def _budget(bench: Bench) -> Mapping[str, Figure]:
    """13B QLoRA for 3,000 a month from the article's provider."""
    recipe = {"model": MODELS["13b"], "rent": {"budget": "3000CNY/month"}}
    plan = plan_for(bench, recipe, ("idc10000-3090", "idc10000-a100-40g"))
    hint = next((one for one in plan.hints if one.id == "advice.budget"), None)
    if hint is None:
        nothing = Figure(Range.exact(0), plan.verdict.id)
        return {"enough": nothing, "spent": nothing, "left": nothing}
    how = f"{hint.values['offer_id']}: most tokens for the money"
    money = {
        name: Figure(Range.exact(float(str(hint.values[name]))), how) for name in ("spent", "left")
    }
    return {"enough": Figure(Range.exact(1), "a card that holds it can be kept all month"), **money}


def _slices(bench: Bench) -> Mapping[str, Figure]:
    """Whether a 7B trains on the slices on offer: 1 where it fits without doubt."""
    setup = bench.setup("7b", seq_len=512)
    figures = {}
    for name, offer_id in (
        ("slice_fits", "idc10000-a100-slice-4g"), ("mig_fits", "idc10000-h100-mig"),
    ):  # fmt: skip
        node = bench.offers[offer_id].node
        part = part_of(bench.gpus[node.gpu_id], node)
        device = bench.laws.memory(setup, part).device_bytes
        fits = fit_of(device, part.usable_bytes) in ("fits", "tight")
        how = f"7B at 1 x 512 needs {device.likely / GIB:.1f} of {part.usable_bytes / GIB:.1f} GiB"
        figures[name] = Figure(Range.exact(float(fits)), how)
    return figures


def _several_cards(bench: Bench) -> Mapping[str, Figure]:
    figures = {}
    for name, size, recipe in (
        ("13b_lora_cards", "13b", LORA), ("34b_lora_cards", "34b", LORA),
        ("full_7b_cards", "7b", FULL),
    ):  # fmt: skip
        setup = bench.setup(size, recipe, seq_len=1024)
        cards = fewest_cards(bench, setup, "rtx-4090")
        figures[name] = Figure(Range.exact(cards), "RTX 4090, sharded, 1 x 1024")
    return figures


def _knobs(bench: Bench) -> Mapping[str, Figure]:
    """How many knobs it takes to bring a 33B at 4,096 tokens onto a 24 GB card."""
    recipe = Recipe.model_validate({"model": MODELS["33b"], "training": {"seq_len": 4096}})
    place = Place(gpu=bench.gpus["rtx-4090"], node=Node(gpu_id="rtx-4090"))
    setup = replace(bench.setup("33b"), seq_len=4096)
    turn = turn_until_it_fits(recipe, setup, place, given_tokens(2_000_000), bench.laws)
    if turn is None:
        return {"knobs": Figure(Range.exact(0), "none")}
    how = "33B at 4096 tokens on a 4090: " + " ".join(f"{k}={v}" for k, v in turn.assignments)
    return {"knobs": Figure(Range.exact(len(turn.knobs)), how)}


RULES: Mapping[str, Callable[[Bench], Mapping[str, Figure]]] = {
    "A-R1": _classes,
    "A-R2": _worth_of_4090,
    "A-R3": _a100_for_7b,
    "A-R4": _terms,
    "A-R5": _budget,
    "A-R6": _slices,
    "A-T2": _knobs,
    "B-R1": _several_cards,
}
