"""What packing, or the lack of it, costs a plan: hints as message ids with numbers."""

from collections.abc import Iterator, Sequence

from loracle.domain.plan import DataFacts, Hint
from loracle.domain.recipe import Recipe
from loracle.planner.packing import asks_to_pack, packs_by_mask, padded_rows
from loracle.planner.seat import Seat
from loracle.planner.work import workload

NOTICEABLE_PADDING = 0.10


def packing_hints(recipe: Recipe, seats: Sequence[Seat], data: DataFacts) -> Iterator[Hint]:
    """Padding that packing would save; packing that was asked for and that the model rules out.

    `seats` are in the order of recommendation; the first one speaks for the plan.
    """
    padding = _padding_share(seats[0])
    if not asks_to_pack(recipe):
        if padding >= NOTICEABLE_PADDING:
            yield Hint(id="advice.padding", values={"share": padding})
        return
    setup, gpu = seats[0].choice.setup, seats[0].place.gpu
    values: dict[str, object] = {"architecture": setup.model.model_type}
    if not setup.packing and data.num_samples == 0:
        yield Hint(id="advice.unpacked_no_data", values=values)
        return
    if not setup.packing:
        packed = workload(recipe, data, packing=True).sequences_per_epoch.likely
        values |= {"sequences": data.num_samples, "packed": int(packed)}
        yield Hint(id="advice.unpacked", values={**values, "share": padding})
        return
    if packs_by_mask(setup, gpu.compute_capability):
        yield Hint(id="advice.packed_by_mask", values=values)
    unpacked = {seat.place.gpu.name for seat in seats if not seat.choice.setup.packing}
    if unpacked and data.num_samples > 0:
        values |= {"cards": sorted(unpacked), "sequences": data.num_samples}
        yield Hint(id="advice.unpacked_elsewhere", values=values)


def _padding_share(seat: Seat) -> float:
    """The share of the tokens that pass through the cards there which is padding."""
    rows = padded_rows(seat.choice.setup, seat.place.gpu.compute_capability)
    return 1 - seat.work.real_len / seat.work.padded_to(rows)
