"""The allocator model against cases worked out by hand from CUDACachingAllocator.cpp."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loracle.dryrun.allocator import (
    AllocatorSettings,
    CachingAllocator,
    OutOfMemory,
    round_size,
    segment_size,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("asked", "rounded"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_requests_round_to_512_bytes(asked, rounded):
    assert round_size(asked) == rounded


@pytest.mark.parametrize(
    ("rounded", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
        (100 * MIB + 512, 102 * MIB),
    ],
)
def test_segments_come_in_three_sizes(rounded, segment):
    assert segment_size(rounded) == segment


def test_small_requests_share_a_segment():
    allocator = CachingAllocator()
    blocks = [allocator.malloc(MIB // 2) for _ in range(4)]
    assert allocator.reserved == 2 * MIB
    allocator.malloc(512)
    assert allocator.reserved == 4 * MIB
    for block in blocks:
        allocator.free(block)
    assert allocator.allocated == 512


def test_a_large_rest_of_more_than_a_mebibyte_is_split_off():
    allocator = CachingAllocator()
    first = allocator.malloc(5 * MIB)
    assert (allocator.allocated, allocator.reserved) == (5 * MIB, 20 * MIB)
    allocator.malloc(14 * MIB + 512)  # 14.0005 MiB of the 15 MiB left: the rest is under 1 MiB
    assert allocator.reserved == 20 * MIB
    assert allocator.allocated == 20 * MIB  # so the block keeps it, and it counts as allocated
    allocator.free(first)
    assert allocator.allocated == 15 * MIB


def test_best_fit_takes_the_smallest_block_that_holds_the_request():
    allocator = CachingAllocator()
    big, _, small, _ = [allocator.malloc(n * MIB) for n in (40, 10, 30, 10)]
    allocator.free(big)
    allocator.free(small)
    taken = allocator.malloc(30 * MIB)
    assert taken.address == small.address


def test_freed_neighbours_merge():
    allocator = CachingAllocator()
    parts = [allocator.malloc(6 * MIB) for _ in range(3)]  # all in one 20 MiB segment
    assert allocator.reserved == 20 * MIB
    for part in (parts[0], parts[2], parts[1]):
        allocator.free(part)
    allocator.malloc(9 * MIB)
    allocator.malloc(9 * MIB)
    assert allocator.reserved == 20 * MIB


def test_a_request_that_fits_no_hole_reserves_more():
    allocator = CachingAllocator()
    parts = [allocator.malloc(20 * MIB) for _ in range(4)]
    allocator.free(parts[0])
    allocator.free(parts[2])
    allocator.malloc(40 * MIB)  # 40 MiB are free, but in two pieces
    assert allocator.reserved == 120 * MIB


def test_empty_cache_returns_whole_segments_only():
    allocator = CachingAllocator()
    kept = allocator.malloc(5 * MIB)
    gone = allocator.malloc(64 * MIB)
    allocator.free(gone)
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_the_cap_flushes_and_retries_before_it_fails():
    allocator = CachingAllocator(cap_bytes=100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)  # does not fit beside the cached 60 MiB, which are given back
    assert (allocator.num_retries, allocator.reserved) == (1, 80 * MIB)
    with pytest.raises(OutOfMemory) as failure:
        allocator.malloc(30 * MIB)
    assert failure.value.requested_bytes == 30 * MIB
    assert failure.value.reserved_bytes == 80 * MIB


def test_expandable_segments_leave_no_holes_between_requests():
    plain = CachingAllocator()
    grown = CachingAllocator(settings=AllocatorSettings(expandable_segments=True))
    for allocator in (plain, grown):
        first = allocator.malloc(30 * MIB)
        allocator.malloc(20 * MIB)
        allocator.free(first)
        allocator.malloc(50 * MIB)
    assert plain.reserved == 100 * MIB
    assert grown.reserved == 100 * MIB  # 30 free, 20, then 50 at the end, in 20 MiB granules
    grown.free(grown.malloc(200 * MIB))
    grown.empty_cache()
    assert grown.reserved == 100 * MIB


def test_oversize_blocks_are_not_split():
    settings_ = AllocatorSettings(max_split_size_bytes=50 * MIB)
    allocator = CachingAllocator(settings=settings_)
    allocator.free(allocator.malloc(100 * MIB))
    allocator.malloc(10 * MIB)  # may not touch the oversize block
    assert allocator.reserved == 110 * MIB
    allocator.malloc(90 * MIB)  # within 20 MiB of it: takes it whole
    assert (allocator.reserved, allocator.allocated) == (110 * MIB, 110 * MIB)


sizes = st.one_of(st.integers(1, 4096), st.integers(1, 12 * MIB), st.integers(10 * MIB, 300 * MIB))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(sizes, st.integers(0, 30)), max_size=120),
    st.booleans(),
)
def test_whatever_the_order_the_books_balance(steps, expandable):
    allocator = CachingAllocator(settings=AllocatorSettings(expandable_segments=expandable))
    live = []
    for size, pick in steps:
        live.append((size, allocator.malloc(size)))
        if pick < len(live):
            allocator.free(live.pop(pick)[1])
        held = sorted((b.address, b.address + b.size) for _, b in live)
        assert all(a[1] <= b[0] for a, b in pairwise(held))  # no overlap
        assert allocator.allocated == sum(b.size for _, b in live)
        assert all(b.size >= round_size(size) for size, b in live)
        assert allocator.allocated <= allocator.reserved <= allocator.peak_reserved
    for _, block in live:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved) == (0, 0)
