"""The plan on a screen: what the job is, what fills the memory, which card to rent, what to do."""

import sys
from collections.abc import Iterator, Mapping, Sequence

from loracle.cli.output import Column, Output
from loracle.cli.say import Speaker, span
from loracle.domain.estimate import MemoryEstimate
from loracle.domain.plan import Candidate, Plan
from loracle.units import GIB, count, gib, money

BAR_WIDTH = 28
ROWS_SHOWN = 12
HINTS_SHOWN = 6
SMALLEST_TERM = 0.05 * GIB


def show_plan(plan: Plan, output: Output, speaker: Speaker, *, everything: bool = False) -> None:
    """Print the whole screen of a plan on stdout."""
    for line in headline(plan, speaker):
        output.line(f"  {line}")
    output.line()
    show_memory(plan, output, speaker)
    output.line()
    show_candidates(plan, output, speaker, everything=everything)
    output.line()
    output.line(f"  {speaker.hint(plan.verdict)}")
    hints = plan.hints if everything else plan.hints[:HINTS_SHOWN]
    if hints:
        output.line()
    for hint in hints:
        output.line(f"  {speaker.text('label.hint')}: {speaker.hint(hint)}")


def quiet_line(plan: Plan, speaker: Speaker) -> str:
    """`RTX 3090 3.8 h ¥1,750`, or the verdict where there is nothing to rent."""
    if plan.best is None:
        return speaker.hint(plan.verdict)
    best = plan.candidates[plan.best]
    parts = [speaker.cards(best.gpu_id, best.num_gpus), speaker.duration(best.seconds.likely)]
    if best.cost is not None:
        parts.append(money(best.cost.likely.amount, best.cost.likely.currency))
    return "  ".join(parts)


def headline(plan: Plan, speaker: Speaker) -> Iterator[str]:
    """The model and method, then the work in tokens and steps."""
    setup, data = plan.setup, plan.data
    lora = setup.lora
    targets = lora.targets if lora else ""
    yield speaker.text(
        "plan.model" if lora else "plan.model_full",
        model=setup.model.id,
        params=count(setup.model.num_params),
        method=speaker.text(f"method.{setup.method}"),
        rank=lora.rank if lora else 0,
        targets=speaker.text(f"targets.{targets}") if isinstance(targets, str)
        else ", ".join(targets),
        trainable=count(plan.memory.trainable_params),
    )  # fmt: skip
    packed = plan.candidates[plan.best or 0].setup.packing or data.num_samples == 0
    yield speaker.text(
        "plan.work_packed" if packed else "plan.work",
        total=count(plan.total_tokens.likely),
        tokens=count(data.tokens.likely),
        epochs=f"{plan.epochs:g}" if plan.epochs < 100 else f"{plan.epochs:,.0f}",
        seq_len=setup.seq_len,
        batch=setup.micro_batch * setup.grad_accum,
        steps=f"{plan.num_steps:,}",
    )
    yield speaker.text(
        "plan.engine",
        engine=speaker.text(f"engine.{plan.engine}"),
        counted=speaker.text(f"counted.{data.counted_by}"),
        stack=setup.stack,
        date=plan.as_of,
    )


def show_memory(plan: Plan, output: Output, speaker: Speaker) -> None:
    """The terms of the peak as bars, for the candidate that the plan recommends (or the first)."""
    one = plan.candidates[plan.best or 0]
    title = speaker.text(
        "plan.memory_title",
        card=speaker.cards(one.gpu_id, 1),
        micro_batch=one.setup.micro_batch,
    )
    terms = memory_terms(one.memory, speaker)
    largest = max((value for _, value in terms), default=1.0)
    rows = [
        (f"  {label}", _bar(value / largest), gib(value), _largest(value, largest, speaker))
        for label, value in terms
    ]
    device = one.memory.device_bytes
    rows.append(
        (
            f"  {speaker.text('plan.total')}",
            speaker.text("plan.peak_phase", phase=speaker.text(f"phase.{one.memory.peak_phase}")),
            gib(device.likely),
            span(device, GIB),
        )
    )
    output.table(
        [
            Column(f"  {title}"),
            Column(""),
            Column(speaker.text("plan.likely"), right=True),
            Column(speaker.text("plan.range")),
        ],
        rows,
    )


def memory_terms(memory: MemoryEstimate, speaker: Speaker) -> list[tuple[str, float]]:
    """Labels and bytes: the terms of the peak, what the allocator holds beyond, the context."""
    allocated = [
        (_term_name(term.id, speaker), term.value)
        for term in memory.terms
        if term.value >= SMALLEST_TERM
    ]
    small = sum(term.value for term in memory.terms if 0 < term.value < SMALLEST_TERM)
    slack = memory.reserved_bytes.likely - memory.allocated_bytes.likely
    outside = memory.device_bytes.likely - memory.reserved_bytes.likely
    rest = [
        (speaker.text("term.small"), small),
        (speaker.text("term.slack"), slack),
        (speaker.text("term.context"), outside),
    ]
    return allocated + [(label, value) for label, value in rest if value > 0]


def _term_name(term: str, speaker: Speaker) -> str:
    return speaker.text(term if "." in term else f"term.{term}")


def show_candidates(
    plan: Plan, output: Output, speaker: Speaker, *, everything: bool = False
) -> None:
    """The ranked table; rows that cannot be recommended stand below and are dim.

    Of several offers for one card with one way of billing, the best stands for all, unless
    `everything` is asked for.
    """
    shown: Sequence[Candidate] = plan.candidates
    if not everything:
        shown = _first_of_each_kind(shown)[:ROWS_SHOWN]
    columns = [
        Column("  #", right=True),
        Column(speaker.text("plan.column.card")),
        Column(speaker.text("plan.column.usable"), right=True),
        Column(speaker.text("plan.column.fit")),
        Column(speaker.text("plan.column.speed"), right=True),
        Column(speaker.text("plan.column.time"), right=True),
        Column(speaker.text("plan.column.price"), right=True),
        Column(speaker.text("plan.column.cost"), right=True),
        Column(speaker.text("plan.column.range")),
        Column(speaker.text("plan.column.note")),
        Column(speaker.text("plan.column.offer")),
    ]
    numbers = {one.rank: at for at, one in enumerate(shown, start=1) if one.rank is not None}
    rows = [_row(one, numbers, speaker) for one in shown]
    dim = [index for index, one in enumerate(shown) if one.rank is None]
    columns, rows, dropped = _narrowed(columns, rows, output)
    output.table(columns, rows, dim=dim)
    hidden = len(plan.candidates) - len(shown)
    costs = [one.cost for one in shown if one.cost is not None]
    for mark, is_meant in (("estimated", any(cost.estimated for cost in costs)),
                           ("stale", any(cost.stale for cost in costs))):  # fmt: skip
        if is_meant:
            output.line(f"  {speaker.text(f'plan.mark.{mark}')}")
    if hidden:
        output.line(f"  {speaker.text('plan.hidden_rows', count=hidden)}")
    if dropped:
        output.line(f"  {speaker.text('plan.hidden_columns', names=', '.join(dropped))}")


def _first_of_each_kind(candidates: Sequence[Candidate]) -> list[Candidate]:
    found: dict[tuple[object, ...], Candidate] = {}
    for one in candidates:
        period = one.cost.period if one.cost else None
        found.setdefault((one.gpu_id, one.num_gpus, one.share, period, one.rank is None), one)
    return list(found.values())


def _row(one: Candidate, numbers: Mapping[int, int], speaker: Speaker) -> tuple[str, ...]:
    """Cells of a candidate; `numbers` are the places of the shown rows by their rank."""
    speed = f"{one.speed.tokens_per_s.likely:,.0f}" if one.speed else "-"
    time = speaker.duration(one.seconds.likely) if one.speed else "-"
    price, cost, spread = "-", "-", ""
    if one.cost is not None:
        unit = one.cost.unit_price
        mark = ("~" if one.cost.estimated else "") + ("†" if one.cost.stale else "")
        price = mark + speaker.price(unit.amount, unit.currency, one.cost.period)
        cost = money(one.cost.likely.amount, one.cost.likely.currency)
        spread = _money_span(one)
    return (
        f"  {numbers[one.rank] if one.rank else '-'}",
        card_words(one, speaker),
        gib(one.usable_bytes),
        fit_words(one, speaker),
        speed,
        time,
        price,
        cost,
        spread,
        _note(one, numbers, speaker),
        one.offer_id or "-",
    )


def card_words(one: Candidate, speaker: Speaker) -> str:
    """`2 x RTX 4090`, `H100 80G PCIe, MIG`: the card, and which part of it."""
    name = speaker.cards(one.gpu_id, one.num_gpus).replace("GB", "G")
    return name if one.share == "whole" else f"{name}, {speaker.text(f'share.{one.share}')}"


def fit_words(one: Candidate, speaker: Speaker) -> str:
    """`fits, +8.5`, `risky, -0.1`: usable memory less the likely peak, in GiB."""
    return speaker.text(f"fit.{one.fit}", gib=f"{one.free_bytes / GIB:+.1f}")


def _note(one: Candidate, numbers: Mapping[int, int], speaker: Speaker) -> str:
    notes = []
    for label in one.labels:
        if label == "dominated":
            if one.dominated_by in numbers:
                rank = numbers[one.dominated_by]
                notes.append(speaker.text("note.dominated", rank=rank))
        else:
            notes.append(speaker.text(f"note.{label}"))
    return ", ".join(notes)


def _money_span(one: Candidate) -> str:
    assert one.cost is not None
    low, high = one.cost.low.amount, one.cost.high.amount
    if low == high:
        return ""
    digits = 0 if high >= 20 else 1
    return f"({low:,.{digits}f} - {high:,.{digits}f})"


def _narrowed(
    columns: list[Column], rows: list[tuple[str, ...]], output: Output
) -> tuple[list[Column], list[tuple[str, ...]], list[str]]:
    """Drop columns, the least needed first, until the table is as narrow as the terminal."""
    if output.mode == "md":
        return columns, rows, []
    from rich.cells import cell_len

    dropped: list[str] = []
    width = output.console().width
    least_needed = [2, 10, 8]  # usable, offer, range
    keep = list(range(len(columns)))
    while least_needed:
        widths = [
            max(cell_len(columns[i].heading), *(cell_len(row[i]) for row in rows)) for i in keep
        ]
        if sum(widths) + 2 * (len(keep) - 1) <= width:
            break
        index = least_needed.pop(0)
        keep.remove(index)
        dropped.append(columns[index].heading.strip())
    return [columns[i] for i in keep], [tuple(row[i] for i in keep) for row in rows], dropped


def _bar(share: float) -> str:
    block = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
    return block * max(1, round(share * BAR_WIDTH))


def _largest(value: float, largest: float, speaker: Speaker) -> str:
    return speaker.text("plan.largest") if value == largest else ""
