"""The large pool of PyTorch's caching allocator, small enough to replay a step in milliseconds.

Requests of 1 MiB and more, in the order in which a step makes them: rounded to 512 bytes, served
by the smallest free block that is large enough, split where more than 1 MiB is left, merged with
free neighbours; else a new segment of 20 MiB, or of whole 2 MiB pages from 10 MiB on
(c10/cuda/CUDACachingAllocator.cpp). The dry run has the full model; this one leaves out the small
pool, caps, and every setting.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

SMALL = 1 << 20  # smaller requests live in another pool
PAGE = 2 << 20
SHARED_SEGMENT, OWN_SEGMENT_FROM = 20 << 20, 10 << 20


class Block:
    """A piece of a segment."""

    __slots__ = ("address", "after", "before", "free", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.before: Block | None = None
        self.after: Block | None = None
        self.free = False


class Segments:
    """Replays requests; `reserved` and `allocated` with their peaks are in bytes."""

    __slots__ = ("_at", "_free", "_next", "allocated", "peak_allocated", "reserved")

    def __init__(self) -> None:
        self.allocated = self.peak_allocated = self.reserved = 0
        self._free: list[tuple[int, int]] = []  # (size, address), sorted
        self._at: dict[int, Block] = {}
        self._next = 0

    def malloc(self, size: int) -> Block:
        """A block of at least `size` bytes (already rounded)."""
        place = bisect_left(self._free, (size, 0))
        if place < len(self._free):
            _, address = self._free.pop(place)
            block = self._at.pop(address)
        else:
            block = self._segment(size)
        rest = block.size - size
        if rest > SMALL:
            self._split(block, size)
        block.free = False
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return block

    def free(self, block: Block) -> None:
        """Give a block back, merged with free neighbours."""
        self.allocated -= block.size
        before, after = block.before, block.after
        if before is not None and before.free:
            self._take(before)
            block.address = before.address
            block.size += before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._take(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._offer(block)

    def _segment(self, size: int) -> Block:
        whole = SHARED_SEGMENT if size < OWN_SEGMENT_FROM else -(-size // PAGE) * PAGE
        self.reserved += whole
        block = Block(self._next, whole)
        self._next += whole + PAGE  # segments never touch
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after = rest
        block.size = size
        self._offer(rest)

    def _offer(self, block: Block) -> None:
        block.free = True
        insort(self._free, (block.size, block.address))
        self._at[block.address] = block

    def _take(self, block: Block) -> None:
        del self._free[bisect_left(self._free, (block.size, block.address))]
        del self._at[block.address]


def replay_large(
    segments: Segments, lives: Iterable[tuple[int, float]], larger_than: float
) -> None:
    """Play births (number, bytes) and deaths (~number, bytes) of what is larger than a size.

    What is still alive at the end is freed there.
    """
    blocks: dict[int, Block] = {}
    for number, size in lives:
        if number < 0:
            block = blocks.pop(~number, None)
            if block is not None:
                segments.free(block)
        elif size > larger_than:
            blocks[number] = segments.malloc(-(-int(size) // 512) * 512)
    for block in blocks.values():
        segments.free(block)


def release(segments: Segments) -> None:
    """torch.cuda.empty_cache(): segments that are free as a whole go back to the driver."""
    for size, address in list(segments._free):
        block = segments._at[address]
        if block.before is None and block.after is None:
            segments._take(block)
            segments.reserved -= size
