"""The large pool of the caching allocator, and what loading and training leave in it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loracle.catalog.measured import setup_of, shipped_runs
from loracle.catalog.shapes import shape_from_config
from loracle.domain.setup import TrainingSetup
from loracle.estimate import params
from loracle.estimate.loading import loading_slack
from loracle.estimate.segments import Segments, release, replay_large
from loracle.estimate.slack import Shape, allocator_slack, reserved_peak

MIB = 1 << 20


def test_segments_by_hand():
    pool = Segments()
    small = pool.malloc(3 * MIB)  # cut from a shared segment of 20 MiB
    assert (pool.reserved, pool.allocated) == (20 * MIB, 3 * MIB)
    other = pool.malloc(4 * MIB)
    assert pool.reserved == 20 * MIB
    large = pool.malloc(11 * MIB)  # 13 MiB are left, which hold it
    assert pool.reserved == 20 * MIB
    own = pool.malloc(15 * MIB)  # whole 2 MiB pages: 16, of which at most 1 MiB is left: kept
    assert (pool.reserved, own.size) == (36 * MIB, 16 * MIB)
    for block in (small, other, large):
        pool.free(block)
    assert pool.malloc(20 * MIB).size == 20 * MIB  # merged again
    assert pool.reserved == 36 * MIB


def test_best_fit_takes_the_smallest_hole():
    pool = Segments()
    blocks = [pool.malloc(size * MIB) for size in (64, 32, 128)]
    for block in blocks:
        pool.free(block)
    assert pool.malloc(30 * MIB) is not None
    assert pool.reserved == 224 * MIB
    # 2 MiB of the 32 are left; the next 30 come out of the 64
    pool.malloc(30 * MIB)
    pool.malloc(34 * MIB)
    assert pool.reserved == 224 * MIB


def test_release_gives_whole_segments_back():
    pool = Segments()
    first, second = pool.malloc(40 * MIB), pool.malloc(60 * MIB)
    pool.free(first)
    release(pool)
    assert pool.reserved == 60 * MIB
    pool.free(second)
    half = pool.malloc(30 * MIB)
    release(pool)
    assert pool.reserved == 60 * MIB  # the other half is pinned
    pool.free(half)
    release(pool)
    assert pool.reserved == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(2049, 200_000)), max_size=60))
def test_books_balance(requests):
    pool, live = Segments(), []
    for birth, blocks in requests:
        if birth or not live:
            live.append(pool.malloc(blocks * 512))
        else:
            pool.free(live.pop(blocks % len(live)))
        assert pool.allocated == sum(block.size for block in live)
        assert pool.allocated <= pool.reserved
        spans = sorted((block.address, block.size) for block in live)
        assert all(a + size <= b for (a, size), (b, _) in pairwise(spans))
    for block in live:
        pool.free(block)
    release(pool)
    assert pool.reserved == pool.allocated == 0


def test_loading_a_30b_leaves_most_of_its_slack():
    # 512 tokens move little, so what is reserved beyond the peak is what loading left; larger
    # runs of the same model keep it and add their own.
    rows = {run.id: run for run in shipped_runs()}
    left = loading_slack(setup_of(rows["h200a-15"]))
    beyond = rows["h200a-15"].peak_reserved_bytes - rows["h200a-15"].peak_allocated_bytes
    assert 0.6 * beyond < left < beyond


def test_loading_leaves_holes_of_a_tenth_where_weights_are_packed():
    llama = shape_from_config({"model_type": "llama"}, id="llama-7b")
    plain = TrainingSetup(model=llama, method="lora", quant=None)
    packed = TrainingSetup(model=llama)
    # layer by layer, a 32 MiB projection nibbles at the 86 MiB hole of an MLP weight, once a size
    assert loading_slack(plain) < 0.06 * 2 * llama.num_params
    assert loading_slack(packed) > 0.1 * params.quantised_bytes(packed)


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("logits", [0.0, 1e9])
def test_slack_adds_up_and_grows(checkpointed, logits):
    shape = Shape(loading=5.0, forward=1e9, logits=logits, kept=2e9, checkpointed=checkpointed)
    more = Shape(loading=5.0, forward=2e9, logits=logits, kept=3e9, checkpointed=checkpointed)
    assert 0 < allocator_slack(shape) < allocator_slack(more)
    assert reserved_peak(shape, 10e9, 0) == 10e9 + allocator_slack(shape)
    assert reserved_peak(shape, 0, 100e9) == pytest.approx(101.5e9)


def test_only_what_is_larger_is_replayed():
    segments = Segments()
    lives = [
        (0, 40.0 * MIB),
        (1, 8.0 * MIB),
        (~0, 0.0),
        (2, 30.0 * MIB),
        (3, 50.0 * MIB),
        (~1, 0.0),
    ]
    replay_large(segments, lives, 10 * MIB)
    assert segments.reserved == 90 * MIB  # 30 MiB settle where 40 MiB were; 8 MiB are not asked for
    assert segments.allocated == 0


def test_layers_that_are_kept_whole_fill_their_segments_well():
    shape = Shape(
        loading=0, forward=0, logits=0, kept=100 * MIB, checkpointed=True, kept_whole=1000 * MIB
    )
    assert allocator_slack(shape) == pytest.approx((0.23 * 100 + 0.019 * 1000 + 10) * MIB)
