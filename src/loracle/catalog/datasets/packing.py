"""How many sequences a data set packs into, and what padding would waste without packing.

TRL packs best-fit decreasing, one block of 1,000 rows at a time (the batch of `datasets.map`), so
the count is done the same way: over the whole file at once it would come out a little too good.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from random import Random

BLOCK_ROWS = 1000  # TRL 1.16: pack_dataset maps with the default batch size of `datasets`


def packed_sequences(lengths: Sequence[int], seq_len: int, *, block_rows: int = BLOCK_ROWS) -> int:
    """Sequences of `seq_len` tokens after best-fit-decreasing packing; longer samples are cut."""
    cut = [min(one, seq_len) for one in lengths]
    blocks = [cut[start : start + block_rows] for start in range(0, len(cut), block_rows)]
    return sum(_best_fit_decreasing(block, seq_len) for block in blocks)


def padding_share(
    lengths: Sequence[int], seq_len: int, *, batch_rows: int = 8, seed: int = 0
) -> float:
    """Share of positions that hold padding when shuffled rows are padded to the longest of a batch.

    One seeded shuffle; `batch_rows` is the micro-batch (1 would never pad).
    """
    cut = [min(one, seq_len) for one in lengths]
    Random(seed).shuffle(cut)
    batches = [cut[start : start + batch_rows] for start in range(0, len(cut), batch_rows)]
    positions = sum(max(batch) * len(batch) for batch in batches)
    return 1 - sum(cut) / positions if positions else 0.0


def _best_fit_decreasing(lengths: Sequence[int], capacity: int) -> int:
    """Bins needed when each length goes, longest first, where least room is left over."""
    rooms: list[int] = []  # distinct free rooms, sorted
    bins_with: dict[int, int] = {}
    opened = 0
    for length in sorted(lengths, reverse=True):
        if length == 0:
            continue
        index = bisect_left(rooms, length)
        if index == len(rooms):
            opened += 1
            room = capacity
        else:
            room = rooms[index]
            bins_with[room] -= 1
            if not bins_with[room]:
                del bins_with[room]
                del rooms[index]
        left = room - length
        if left:
            if left not in bins_with:
                insort(rooms, left)
                bins_with[left] = 0
            bins_with[left] += 1
    return opened
