"""A model of PyTorch's CUDA caching allocator, so that a trace can be replayed without a GPU.

What `torch.cuda.memory_reserved()` shows depends on the order and the sizes of all allocations,
not only on their sum. This module follows c10/cuda/CUDACachingAllocator.cpp (torch 2.8 to 2.13):
rounding to 512 B, a small and a large pool, segments of 2 MiB, 20 MiB or a multiple of 2 MiB, best
fit by (size, address), split of what is left over, merge with free neighbours, expandable segments,
`max_split_size_mb`, and the flush and retry before an out-of-memory error.

Left out: streams (training uses one), CUDA graphs' private pools, `roundup_power2_divisions`.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

BLOCK = 512  # kMinBlockSize
SMALL_SIZE = 1 << 20  # kSmallSize: the largest allocation of the small pool
SMALL_SEGMENT = 2 << 20  # kSmallBuffer
LARGE_SEGMENT = 20 << 20  # kLargeBuffer
MIN_LARGE = 10 << 20  # kMinLargeAlloc: larger requests get a segment of their own
ROUND_LARGE = 2 << 20  # kRoundLarge


class OutOfMemory(Exception):
    """The cap is reached after the allocator has given back every free segment."""

    def __init__(self, requested_bytes: int, reserved_bytes: int) -> None:
        super().__init__(requested_bytes, reserved_bytes)
        self.requested_bytes = requested_bytes
        self.reserved_bytes = reserved_bytes


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What PYTORCH_CUDA_ALLOC_CONF can say. Fractions and sizes as there."""

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    garbage_collection_threshold: float | None = None


class Block:
    """A piece of a segment: address, size, neighbours in the same segment."""

    __slots__ = ("address", "allocated", "next", "prev", "requested", "segment", "size", "small")

    def __init__(self, address: int, size: int, small: bool, segment: int) -> None:
        self.address = address
        self.size = size
        self.small = small
        self.segment = segment
        self.allocated = False
        self.requested = 0
        self.prev: Block | None = None
        self.next: Block | None = None


def round_size(size: int) -> int:
    """Bytes that a request of `size` bytes takes from a block."""
    return BLOCK if size < BLOCK else (size + BLOCK - 1) // BLOCK * BLOCK


def segment_size(rounded: int) -> int:
    """Bytes asked from the driver when no free block fits."""
    if rounded <= SMALL_SIZE:
        return SMALL_SEGMENT
    if rounded < MIN_LARGE:
        return LARGE_SEGMENT
    return (rounded + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE


class CachingAllocator:
    """Replays mallocs and frees. `allocated`, `reserved` and their peaks are in bytes.

    `cap_bytes` bounds `reserved`, as `torch.cuda.set_per_process_memory_fraction` does.
    `malloc` raises OutOfMemory where CUDA would, after the flush and the retry.
    """

    def __init__(
        self, cap_bytes: int | None = None, settings: AllocatorSettings | None = None
    ) -> None:
        self.cap_bytes = cap_bytes
        self.settings = settings or AllocatorSettings()
        self.allocated = 0
        self.reserved = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self.num_retries = 0
        # the driver hands out addresses downwards, and small pieces upwards within one region;
        # among free blocks of one size the lowest address wins
        self._next_small = 1 << 30
        self._next_large = 1 << 46
        # free blocks per pool, as sorted (size, address) with a side table
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._by_address: dict[int, Block] = {}
        # expandable segments: one per pool, grown and trimmed in granules
        self._tails: dict[bool, Block | None] = {True: None, False: None}

    def malloc(self, size: int) -> Block:
        """A block for `size` bytes."""
        rounded = round_size(size)
        small = rounded <= SMALL_SIZE
        block = self._find(rounded, small)
        if block is None:
            block = self._grow(rounded, small)
        return self._take(block, rounded)

    def free(self, block: Block) -> None:
        """Give a block back to its pool, merged with its free neighbours."""
        self.allocated -= block.size
        block.allocated = False
        before, after = block.prev, block.next
        if before is not None and not before.allocated:
            self._remove(before)
            block.address = before.address
            block.size += before.size
            block.prev = before.prev
            if block.prev is not None:
                block.prev.next = block
        if after is not None and not after.allocated:
            self._remove(after)
            if self._tails[block.small] is after:
                self._tails[block.small] = block
            block.size += after.size
            block.next = after.next
            if block.next is not None:
                block.next.prev = block
        self._insert(block)

    def empty_cache(self) -> None:
        """Give whole free segments back to the driver (torch.cuda.empty_cache)."""
        for small in (True, False):
            for size, address in list(self._free[small]):
                block = self._by_address[address]
                if self.settings.expandable_segments:
                    self._trim(block)
                elif block.prev is None and block.next is None:
                    self._remove(block)
                    self.reserved -= size

    def reset_peaks(self) -> None:
        """Start both peaks from the present state (torch.cuda.reset_peak_memory_stats)."""
        self.peak_allocated = self.allocated
        self.peak_reserved = self.reserved

    def _find(self, rounded: int, small: bool) -> Block | None:
        pool = self._free[small]
        at = bisect_left(pool, (rounded, 0))
        if at == len(pool):
            return None
        size, address = pool[at]
        limit = self.settings.max_split_size_bytes
        if limit is not None and not self.settings.expandable_segments:
            # an oversize block is never split, and serves only requests close to its size
            if rounded < limit and size >= limit:
                return None
            if rounded >= limit and size >= rounded + LARGE_SEGMENT:
                return None
        del pool[at]
        return self._by_address.pop(address)

    def _grow(self, rounded: int, small: bool) -> Block:
        if self.settings.expandable_segments:
            return self._expand(rounded, small)
        size = segment_size(rounded)
        threshold = self.settings.garbage_collection_threshold
        if threshold is not None and self.cap_bytes is not None:
            self._collect(threshold * self.cap_bytes)
        if self.cap_bytes is not None and self.reserved + size > self.cap_bytes:
            self.num_retries += 1
            self.empty_cache()
            if self.reserved + size > self.cap_bytes:
                raise OutOfMemory(rounded, self.reserved)
        self._reserve(size)
        if small:
            address = self._next_small
            self._next_small += 2 * size  # segments never touch: blocks of two must not merge
        else:
            self._next_large -= size + ROUND_LARGE
            address = self._next_large
        return Block(address, size, small, address)

    def _collect(self, target_bytes: float) -> None:
        """garbage_collection_threshold: free whole segments until under the target."""
        for size, address in list(self._free[False]):
            if self.reserved <= target_bytes:
                return
            block = self._by_address[address]
            if block.prev is None and block.next is None:
                self._remove(block)
                self.reserved -= size

    def _expand(self, rounded: int, small: bool) -> Block:
        """Map more granules at the end of the pool's only segment."""
        granule = SMALL_SEGMENT if small else LARGE_SEGMENT
        tail = self._tails[small]
        room = tail.size if tail is not None and not tail.allocated else 0
        size = (rounded - room + granule - 1) // granule * granule
        if self.cap_bytes is not None and self.reserved + size > self.cap_bytes:
            self.num_retries += 1
            self.empty_cache()
            tail = self._tails[small]
            room = tail.size if tail is not None and not tail.allocated else 0
            size = (rounded - room + granule - 1) // granule * granule
            if self.reserved + size > self.cap_bytes:
                raise OutOfMemory(rounded, self.reserved)
        self._reserve(size)
        if tail is not None and not tail.allocated:
            self._remove(tail)
            tail.size += size
            return tail
        address = (1 << 50 if small else 1 << 52) if tail is None else tail.address + tail.size
        block = Block(address, size, small, address)
        block.prev = tail
        if tail is not None:
            tail.next = block
        self._tails[small] = block
        return block

    def _trim(self, block: Block) -> None:
        """Unmap the whole granules inside a free block; only the tail is modelled."""
        if block is not self._tails[block.small]:
            return
        granule = SMALL_SEGMENT if block.small else LARGE_SEGMENT
        given_back = block.size // granule * granule
        if given_back == 0:
            return
        self._remove(block)
        self.reserved -= given_back
        block.size -= given_back
        if block.size:
            self._insert(block)
            return
        self._tails[block.small] = block.prev
        if block.prev is not None:
            block.prev.next = None

    def _reserve(self, size: int) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _take(self, block: Block, rounded: int) -> Block:
        rest = block.size - rounded
        if self._splits(block, rest):
            left = Block(block.address + rounded, rest, block.small, block.segment)
            left.prev, left.next = block, block.next
            if left.next is not None:
                left.next.prev = left
            if self._tails[block.small] is block:
                self._tails[block.small] = left
            block.next = left
            block.size = rounded
            self._insert(left)
        block.allocated = True
        block.requested = rounded
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def _splits(self, block: Block, rest: int) -> bool:
        if block.small or self.settings.expandable_segments:
            return rest >= BLOCK
        limit = self.settings.max_split_size_bytes
        if limit is not None and block.size >= limit:
            return False
        return rest > SMALL_SIZE

    def _insert(self, block: Block) -> None:
        insort(self._free[block.small], (block.size, block.address))
        self._by_address[block.address] = block

    def _remove(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]
        del self._by_address[block.address]
