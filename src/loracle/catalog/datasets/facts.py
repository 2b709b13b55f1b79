"""From a data set to what a plan needs to know of it: tokens, lengths, the cut, the packing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path
from random import Random

from loracle.catalog.datasets.large import LargeSample, is_large, sample_large
from loracle.catalog.datasets.packing import packed_sequences, padding_share
from loracle.catalog.datasets.reader import read_dataset
from loracle.catalog.datasets.samples import DataReport, DataSet, Sample
from loracle.catalog.datasets.tokens import TokenCounter, find_counter
from loracle.domain.estimate import Range
from loracle.domain.plan import DataFacts

PERCENTILES = (50, 90, 95, 99, 100)
COUNTED_CHARACTERS = 8_000_000  # a tokenizer takes about 2 s for so many; more are sampled
_SAMPLE_ERROR = 3.0  # standard errors to either side when samples stand for the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCount:
    """Facts for the plan, and what else the `data` command shows.

    `counted_rows` are those whose tokens were counted one by one; the others follow from their
    characters. `unlabelled_rows` are samples whose prompt alone fills the sequence, so that the
    cut leaves nothing to learn from. `cut_tokens` are lost to the cut. `packed_fill` is the share
    of packed positions that hold a token.
    """

    facts: DataFacts
    report: DataReport
    counted_rows: int
    unlabelled_rows: int
    cut_tokens: float
    packed_fill: float
    read_share: float = 1.0  # of the bytes; less where a large file was sampled


def data_facts(
    source: str | Path,
    *,
    seq_len: int,
    packing: bool = True,
    model: str | Path | None = None,
    vocab_size: int | None = None,
    format: str = "auto",  # noqa: A002 - the recipe's word
    skip_bad: bool = False,
) -> DataFacts:
    """The facts of a file for a plan; raises what `read_dataset` raises.

    `model` is a folder or hub id whose tokenizer may lie on this machine; else `vocab_size`
    narrows the count by characters.
    """
    counter = find_counter(model, vocab_size=vocab_size)
    if is_large(source):
        sample = sample_large(source, format=format, skip_bad=skip_bad)
        return count_large(sample, counter, seq_len=seq_len, packing=packing).facts
    data = read_dataset(source, format=format, skip_bad=skip_bad)
    return count_data(data, counter, seq_len=seq_len, packing=packing).facts


def count_data(
    data: DataSet, counter: TokenCounter, *, seq_len: int, packing: bool = True
) -> DataCount:
    """Count a data set; `packing` says whether its rows will be packed to `seq_len`."""
    counts, counted_rows = _counts(data.samples, counter)
    lengths = [max(1, round(one.likely)) for one in counts]
    total = _total(counts)
    kept = _total([_cut(one, seq_len) for one in counts])
    longer = [index for index, length in enumerate(lengths) if length > seq_len]
    packed = packed_sequences(lengths, seq_len)
    kept_tokens = sum(min(length, seq_len) for length in lengths)
    facts = DataFacts(
        num_samples=len(lengths),
        tokens=total,
        counted_by=counter.counted_by,
        length_percentiles=percentiles(lengths),
        cut_share=len(longer) / len(lengths),
        tokens_kept=kept,
        packed_sequences=packed if packing else None,
        padding_share=padding_share(lengths, seq_len),
        format=data.report.format,
        bad_rows=data.report.num_bad,
    )
    return DataCount(
        facts=facts,
        report=data.report,
        counted_rows=counted_rows,
        unlabelled_rows=sum(
            counter.count_prompt(data.samples[index]) >= seq_len for index in longer
        ),
        cut_tokens=sum(lengths) - kept_tokens,
        packed_fill=kept_tokens / (packed * seq_len),
    )


def count_large(
    sample: LargeSample, counter: TokenCounter, *, seq_len: int, packing: bool = True
) -> DataCount:
    """Count a sampled set and scale it to the whole; ranges take in what the sample leaves open."""
    counted = count_data(sample.data, counter, seq_len=seq_len, packing=packing)
    facts, number = counted.facts, len(sample.data.samples)
    scale = sample.rows.scaled(1 / number)
    kept = facts.tokens_kept
    return replace(
        counted,
        facts=replace(
            facts,
            num_samples=round(sample.rows.likely),
            tokens=_times(facts.tokens, scale),
            tokens_kept=None if kept is None else _times(kept, scale),
            packed_sequences=None
            if facts.packed_sequences is None
            else round(facts.packed_sequences * scale.likely),
            bad_rows=round(facts.bad_rows * scale.likely),
        ),
        unlabelled_rows=round(counted.unlabelled_rows * scale.likely),
        cut_tokens=counted.cut_tokens * scale.likely,
        read_share=sample.read_share,
    )


def _times(value: Range, scale: Range) -> Range:
    return Range(value.low * scale.low, value.likely * scale.likely, value.high * scale.high)


def percentiles(lengths: Sequence[int]) -> dict[int, float]:
    """Nearest-rank percentiles: the smallest length that p % of the samples do not pass."""
    ordered = sorted(lengths)
    return {p: float(ordered[max(0, ceil(p / 100 * len(ordered)) - 1)]) for p in PERCENTILES}


def _counts(samples: Sequence[Sample], counter: TokenCounter) -> tuple[list[Range], int]:
    """Tokens of every sample, and how many were counted one by one.

    A set larger than `COUNTED_CHARACTERS` is counted on a seeded random sample; the other rows
    get the sample's tokens per character, with a range of three standard errors of that ratio.
    """
    sizes = [len(sample.characters) for sample in samples]
    if sum(sizes) <= COUNTED_CHARACTERS:
        return counter.count(samples), len(samples)
    order = list(range(len(samples)))
    Random(0).shuffle(order)
    chosen: list[int] = []
    characters = 0
    for index in order:
        if characters >= COUNTED_CHARACTERS and len(chosen) >= 2:
            break
        chosen.append(index)
        characters += sizes[index]
    counted = dict(zip(chosen, counter.count([samples[i] for i in chosen]), strict=True))
    rate = _tokens_per_character(list(counted.values()), [sizes[index] for index in chosen])
    counts = [counted.get(index) or rate.scaled(size) for index, size in enumerate(sizes)]
    return counts, len(chosen)


def _tokens_per_character(counts: Sequence[Range], sizes: Sequence[int]) -> Range:
    """Ratio estimate, widened by its standard error (Cochran, Sampling Techniques, 6.4)."""
    total = _total(counts).scaled(1 / sum(sizes))
    pairs = zip(counts, sizes, strict=True)
    residuals = sum((one.likely - total.likely * size) ** 2 for one, size in pairs)
    mean = sum(sizes) / len(sizes)
    error = sqrt(residuals / (len(sizes) - 1) / len(sizes)) / mean
    spread = min(0.99, _SAMPLE_ERROR * error / total.likely)
    return Range(total.low * (1 - spread), total.likely, total.high * (1 + spread))


def _total(counts: Sequence[Range]) -> Range:
    return Range(
        sum(one.low for one in counts),
        sum(one.likely for one in counts),
        sum(one.high for one in counts),
    )


def _cut(count: Range, seq_len: int) -> Range:
    return Range(min(count.low, seq_len), min(count.likely, seq_len), min(count.high, seq_len))
