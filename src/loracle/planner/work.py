"""How much work the job is: optimizer steps, sequences, tokens that pass through the cards."""

import math
from dataclasses import dataclass
from itertools import pairwise

from loracle.domain.estimate import Range
from loracle.domain.plan import DataFacts
from loracle.domain.recipe import Recipe

PADDED_TOGETHER = 8  # rows of a micro-batch that `DataFacts.padding_share` is counted for


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The job in steps and tokens.

    `peak_len` is the longest sequence that a micro-batch can hold (it sets the memory), `real_len`
    what a sequence has on average, `mean_len` what it is padded or packed to in a micro-batch of
    `PADDED_TOGETHER`. `steps` is a range where tokens were only bounded. `tokens` counts what
    passes through the cards in all epochs, with the padding of such micro-batches.
    """

    steps: Range
    epochs: float
    sequences_per_epoch: Range
    tokens: Range
    peak_len: int
    mean_len: int
    real_len: int
    packed: bool

    @property
    def num_steps(self) -> int:
        """The likely number of optimizer steps."""
        return math.ceil(self.steps.likely)

    def padded_to(self, rows: int) -> int:
        """The mean length of a sequence where `rows` are padded to the longest of them.

        The mean of the longest grows with the logarithm of their number (for exponential lengths
        it is the harmonic number), through the two points that are known: none at one row, the
        data's padding at `PADDED_TOGETHER`.
        """
        growth = (self.mean_len - self.real_len) * math.log(rows) / math.log(PADDED_TOGETHER)
        return max(1, min(self.peak_len, round(self.real_len + growth)))


def given_tokens(tokens: int) -> DataFacts:
    """Facts of a data set of which only the size is known."""
    return DataFacts(num_samples=0, tokens=Range.exact(tokens), counted_by="given")


def workload(recipe: Recipe, data: DataFacts, *, packing: bool) -> Workload:
    """The work that a recipe makes of a data set.

    Packed sequences are full; without packing a sample is a sequence, which some layouts pad to the
    longest of its micro-batch. A last, incomplete step counts as a step.
    """
    seq_len = recipe.training.seq_len
    batch = recipe.training.effective_batch
    packed = packing or data.num_samples == 0
    kept = data.tokens_kept or data.tokens
    if packed:
        sequences = _packed_sequences(data, kept, seq_len)
        peak_len = mean_len = real_len = seq_len
    else:
        sequences = Range.exact(data.num_samples)
        longest = data.length_percentiles.get(100, seq_len)
        peak_len = max(1, min(seq_len, math.ceil(longest)))
        real = kept.likely / data.num_samples
        real_len = max(1, min(peak_len, round(real)))
        mean_len = max(1, min(peak_len, round(real / (1 - min(data.padding_share, 0.99)))))
    if recipe.training.steps is not None:
        steps = Range.exact(recipe.training.steps)
        epochs = recipe.training.steps * batch / max(1.0, sequences.likely)
    else:
        epochs = recipe.epochs
        steps = _steps(sequences, batch, epochs)
    return Workload(
        steps=steps,
        epochs=epochs,
        sequences_per_epoch=sequences,
        tokens=steps.scaled(batch * mean_len),
        peak_len=peak_len,
        mean_len=mean_len,
        real_len=real_len,
        packed=packed,
    )


def cut_share_at(data: DataFacts, seq_len: int) -> float:
    """The share of samples longer than `seq_len`, read between the known length percentiles.

    Between two percentiles the share is interpolated; below the lowest known one it is at least
    what that one says.
    """
    points = sorted((length, 1 - percent / 100) for percent, length in
                    data.length_percentiles.items())  # fmt: skip
    if not points:
        return 0.0
    if seq_len >= points[-1][0]:
        return 0.0
    if seq_len < points[0][0]:
        return points[0][1]
    for (short, above_short), (long, above_long) in pairwise(points):
        if short <= seq_len < long:
            along = (seq_len - short) / (long - short)
            return above_short + (above_long - above_short) * along
    return 0.0


def _packed_sequences(data: DataFacts, kept: Range, seq_len: int) -> Range:
    if data.packed_sequences is not None and kept.likely > 0:
        # Relative to the likely count, so that an exact count stays exact to the last bit.
        counted = Range(
            data.packed_sequences * (kept.low / kept.likely),
            data.packed_sequences,
            data.packed_sequences * (kept.high / kept.likely),
        )
    else:
        counted = kept.scaled(1 / seq_len)
    return Range(math.ceil(counted.low), math.ceil(counted.likely), math.ceil(counted.high))


def _steps(sequences: Range, batch: int, epochs: float) -> Range:
    ends = (sequences.low, sequences.likely, sequences.high)
    low, likely, high = (max(1, math.ceil(math.ceil(end / batch) * epochs)) for end in ends)
    return Range(low, likely, high)
