"""Order and dominance of many candidates, against the definition."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from loracle.domain.estimate import MemoryEstimate, Range, SpeedEstimate
from loracle.domain.model import ModelShape
from loracle.domain.money import Money
from loracle.domain.plan import Candidate, CostEstimate, Phase
from loracle.domain.setup import TrainingSetup
from loracle.planner.cost import Market
from loracle.planner.rank import rank

MARKET = Market((), "CNY", "2026-01-15")
SHAPE = ModelShape(
    id="m", model_type="llama", config={}, hidden_size=1, intermediate_size=1, num_layers=1,
    num_heads=1, num_kv_heads=1, head_dim=1, vocab_size=1, tied_embeddings=False, mlp_gated=True,
    norm="rmsnorm",
)  # fmt: skip
ONE = Range.exact(1)
MEMORY = MemoryEstimate(
    engine="formula", model_bytes=1, allocated_bytes=ONE, reserved_bytes=ONE, device_bytes=ONE,
    peak_phase="backward",
)  # fmt: skip
SPEED = SpeedEstimate(engine="formula", step_seconds=ONE, tokens_per_s=ONE)


def candidate(index, yuan, seconds, fit):
    money = Money.of(yuan, "CNY")
    cost = CostEstimate(
        offer_id=str(index), term="hour", unit_price=money, period="hour", billed_periods=ONE,
        low=money, likely=money, high=money,
    )  # fmt: skip
    return Candidate(
        rank=None, gpu_id="g", num_gpus=1, offer_id=str(index), setup=TrainingSetup(model=SHAPE),
        usable_bytes=2, memory=MEMORY, fit=fit, speed=SPEED, cost=cost,
        timeline=(Phase(id="train", seconds=Range.exact(seconds)),),
    )  # fmt: skip


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 6), st.integers(1, 6), st.sampled_from(["fits", "tight", "risky", "no"])
        ),
        max_size=12,
    )
)
def test_order_and_dominance_are_what_they_say(rows):
    found = rank(
        [candidate(index, *row) for index, row in enumerate(rows)],
        budget=None, deadline_seconds=None, market=MARKET, prices_matter=True,
    )  # fmt: skip
    ranked = [one for one in found if one.rank is not None]
    assert len(found) == len(rows)
    assert [one.rank for one in ranked] == list(range(1, len(ranked) + 1))
    assert all(one.fit in ("fits", "tight") for one in ranked)
    key = [(one.cost.likely.amount, one.seconds.likely) for one in ranked]
    assert key == sorted(key)
    assert sum("fastest" in one.labels for one in ranked) == bool(ranked)
    for one, (yuan, seconds) in zip(ranked, key, strict=True):
        beaten_by = [
            other.rank
            for other, (their_yuan, their_seconds) in zip(ranked, key, strict=True)
            if their_yuan <= yuan and their_seconds <= seconds
            and (their_yuan, their_seconds) != (yuan, seconds)
        ]  # fmt: skip
        assert ("dominated" in one.labels) == bool(beaten_by)
        assert one.dominated_by == (beaten_by[0] if beaten_by else None)


def test_what_may_not_be_recommended_stands_below():
    shared = replace(candidate(0, 1, 1, "fits"), labels=("shared",))
    found = rank([shared, candidate(1, 9, 9, "fits")], budget=None, deadline_seconds=5,
                 market=MARKET, prices_matter=True)  # fmt: skip
    assert [one.rank for one in found] == [None, None]
    assert {label for one in found for label in one.labels} == {"shared", "late"}
