"""`--explain`: where a figure of the plan comes from, term by term, with the formula's values."""

from collections.abc import Mapping, Sequence

from loracle.cli.output import Column, Output
from loracle.cli.say import Speaker, span
from loracle.domain.estimate import Term
from loracle.domain.plan import Candidate, Plan
from loracle.units import GIB, HOUR, gib, money


def show_explanation(plan: Plan, topic: str, output: Output, speaker: Speaker) -> None:
    """Print the terms of `memory`, `speed` or `cost` for the candidate that the plan recommends."""
    one = plan.candidates[plan.best or 0]
    output.line(
        f"  {speaker.text(f'explain.{topic}', cards=speaker.cards(one.gpu_id, one.num_gpus))}"
    )
    output.line()
    {"memory": _memory, "speed": _speed, "cost": _cost}[topic](one, output, speaker)


def _memory(one: Candidate, output: Output, speaker: Speaker) -> None:
    memory = one.memory
    _terms(memory.terms, GIB, "GiB", output, speaker)
    output.line()
    for name in ("allocated", "reserved", "device"):
        values = getattr(memory, f"{name}_bytes")
        output.line(
            f"  {speaker.text(f'explain.{name}')}: {gib(values.likely, 2)} {span(values, GIB, 2)}"
        )
    output.line(
        "  "
        + speaker.text(
            "explain.usable",
            usable=gib(one.usable_bytes, 2),
            free=f"{one.free_bytes / GIB:+.2f} GiB",
        )
    )
    _notes(memory.notes, output, speaker)


def _speed(one: Candidate, output: Output, speaker: Speaker) -> None:
    if one.speed is None:
        output.line(f"  {speaker.text('explain.does_not_fit')}")
        return
    _terms(one.speed.terms, 1, "s", output, speaker)
    output.line()
    step = one.speed.step_seconds
    output.line(f"  {speaker.text('explain.step')}: {step.likely:,.2f} s {span(step, 1, 2)}")
    output.line(
        f"  {speaker.text('explain.bound', bound=speaker.text(f'bound.{one.speed.bound}'))}"
    )
    _notes(one.speed.notes, output, speaker)


def _cost(one: Candidate, output: Output, speaker: Speaker) -> None:
    total = one.seconds
    rows = [
        (
            f"  {speaker.text(f'phase.{phase.id}')}",
            speaker.duration(phase.seconds.likely),
            span(phase.seconds, HOUR, 2),
            f"{phase.seconds.likely / total.likely:.0%}" if total.likely else "-",
        )
        for phase in one.timeline
    ]
    rows.append(
        (
            f"  {speaker.text('phase.total')}",
            speaker.duration(total.likely),
            span(total, HOUR, 2),
            "",
        )
    )
    output.table(
        [
            Column(f"  {speaker.text('plan.column.phase')}"),
            Column(speaker.text("plan.likely"), right=True),
            Column(f"{speaker.text('plan.range')} h"),
            Column(speaker.text("plan.column.share"), right=True),
        ],
        rows,
    )
    output.line()
    if one.cost is None:
        output.line(f"  {speaker.text('explain.no_price')}")
        return
    cost = one.cost
    output.line(
        "  "
        + speaker.text(
            "explain.bill",
            offer=cost.offer_id,
            term=speaker.text(f"by.{cost.term}"),
            price=speaker.price(cost.unit_price.amount, cost.unit_price.currency, cost.period),
            periods=f"{cost.billed_periods.likely:,.2f}",
            total=money(cost.likely.amount, cost.likely.currency, 2),
            low=money(cost.low.amount, cost.low.currency, 2),
            high=money(cost.high.amount, cost.high.currency, 2),
        )
    )
    for line, amount in cost.lines:
        output.line(f"    {speaker.text(line)}: {money(amount.amount, amount.currency, 2)}")


def _terms(terms: Sequence[Term], unit: float, name: str, output: Output, speaker: Speaker) -> None:
    total = sum(term.value for term in terms) or 1.0
    rows = [
        (
            f"  {speaker.text(term.id if '.' in term.id else f'term.{term.id}')}",
            f"{term.value / unit:,.2f} {name}",
            f"{term.value / total:.0%}",
            term.formula,
            _values(term.values),
            term.source,
        )
        for term in sorted(terms, key=lambda term: -term.value)
    ]
    columns = [
        Column(f"  {speaker.text('plan.column.term')}"),
        Column(speaker.text("plan.column.value"), right=True),
        Column(speaker.text("plan.column.share"), right=True),
    ]
    if output.mode == "md":
        columns += [
            Column(speaker.text(f"plan.column.{one}")) for one in ("formula", "values", "source")
        ]
        output.table(columns, rows)
        return
    output.table(columns, [row[:3] for row in rows])
    output.line()
    for label, _, _, formula, values, source in rows:
        if formula:
            output.line(f"{label} = {formula}")
            if values:
                output.line(f"      {speaker.text('explain.with')} {values}")
            if source:
                output.line(f"      {speaker.text('explain.source')} {source}")


def _values(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {_number(value)}" for name, value in values.items())


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return f"{value:,}" if type(value) is int else str(value)


def _notes(notes: Sequence[str], output: Output, speaker: Speaker) -> None:
    for note in notes:
        output.line(f"  {speaker.text(note)}")
