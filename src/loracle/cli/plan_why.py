"""`--why CARD`: why a card is the choice, or what stands against it, in numbers."""

from loracle.cli.output import Output
from loracle.cli.plan_screen import card_words, fit_words
from loracle.cli.say import Speaker
from loracle.domain.plan import Candidate, Plan
from loracle.errors import InputError
from loracle.units import GIB, gib, money


def show_why(plan: Plan, card: str, output: Output, speaker: Speaker) -> None:
    """Print the case of each candidate with this card.

    Raises CatalogError E031 for an unknown card, InputError E032 for one that is not in the plan.
    """
    from loracle.catalog.gpus import find_gpu

    gpu_id = find_gpu(card).id
    found = [one for one in plan.candidates if one.gpu_id == gpu_id]
    if not found:
        names = ", ".join(
            dict.fromkeys(speaker.cards(one.gpu_id, 1) for one in plan.candidates)
        )  # fmt: skip
        raise InputError("plan.not_in_plan", code="E032", hint="hint.why_card",
                         card=card, names=names)  # fmt: skip
    best = None if plan.best is None else plan.candidates[plan.best]
    for one in found:
        _case(one, best, output, speaker)


def _case(one: Candidate, best: Candidate | None, output: Output, speaker: Speaker) -> None:
    where = f" ({one.offer_id})" if one.offer_id else ""
    output.line(f"  {card_words(one, speaker)}{where}")
    device = one.memory.device_bytes
    output.line(
        "    "
        + speaker.text(
            "why.memory",
            need=gib(device.likely),
            low=f"{device.low / GIB:.1f}",
            high=f"{device.high / GIB:.1f}",
            usable=gib(one.usable_bytes),
            fit=fit_words(one, speaker),
        )
    )
    if one is best:
        output.line(f"    {speaker.text('why.best')}")
    elif one.speed is not None and best is not None:
        output.line(f"    {_against(one, best, speaker)}")
    for label in one.labels:
        if label not in ("dominated", "fastest", "cheapest"):
            output.line(f"    {speaker.text(f'note.{label}')}")


def _against(one: Candidate, best: Candidate, speaker: Speaker) -> str:
    ratio = one.seconds.likely / best.seconds.likely
    times = speaker.text(
        "why.slower" if ratio >= 1 else "why.faster",
        ratio=f"{max(ratio, 1 / ratio):.2f}",
        time=speaker.duration(one.seconds.likely),
        best_time=speaker.duration(best.seconds.likely),
    )
    if one.cost is None or best.cost is None:
        return times
    more = one.cost.likely - best.cost.likely
    costs = speaker.text(
        "why.dearer" if more.amount >= 0 else "why.cheaper",
        difference=money(abs(more.amount), more.currency),
        cost=money(one.cost.likely.amount, one.cost.likely.currency),
        best=speaker.cards(best.gpu_id, best.num_gpus),
    )
    return speaker.text("why.and", times=times, costs=costs)
