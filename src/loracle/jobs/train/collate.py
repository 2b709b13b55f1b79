"""Batches without an attention mask: documents are kept apart by their positions.

Packed documents are isolated only where position ids restart, no attention mask is passed and the
cache is off; an all-ones mask or the cache lets them look at each other without a word. Three
layouts: `flat` puts a micro-batch into one row with the document bounds for a variable-length
kernel, so nothing is padded; where all its documents are equally long, `even` gives each a row of
its own instead, which plain causal attention computes with less work for the host; `rows` keeps one
row a sequence, padded at the end with a document of its own that carries no label.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from loracle.jobs.train.templates import IGNORED


@dataclass(slots=True)
class Collator:
    """Rows of `input_ids`, `labels`, `seq_lengths` to one micro-batch of tensors.

    `seconds` adds up what that took, for the watch over the data pipeline.
    """

    pad_token_id: int
    flat: bool = False
    seconds: float = 0.0

    def __call__(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, object]:
        """`input_ids`, `labels`, `position_ids`, and document bounds in the flat layout."""
        began = time.perf_counter()
        if not self.flat:
            batch = self._rows(rows)
        elif len({length for row in rows for length in row["seq_lengths"]}) == 1:
            batch = self._even(rows)
        else:
            batch = self._flat(rows)
        self.seconds += time.perf_counter() - began
        return batch

    def _flat(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, object]:
        lengths = torch.tensor([length for row in rows for length in row["seq_lengths"]])
        bounds = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).to(torch.int32)
        longest = int(lengths.max())
        return {
            "input_ids": torch.tensor([[one for row in rows for one in row["input_ids"]]]),
            "labels": torch.tensor([[one for row in rows for one in _labels(row)]]),
            "position_ids": torch.cat([torch.arange(int(one)) for one in lengths])[None],
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": longest,
            "max_length_k": longest,
        }

    def _even(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, object]:
        """One position row serves all, so rotary tables are as small as one document."""
        length = rows[0]["seq_lengths"][0]
        return {
            "input_ids": torch.tensor([one for row in rows for one in row["input_ids"]]).view(
                -1, length
            ),
            "labels": torch.tensor([one for row in rows for one in _labels(row)]).view(-1, length),
            "position_ids": torch.arange(length)[None],
        }

    def _rows(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, object]:
        width = max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), width), self.pad_token_id)
        labels = torch.full((len(rows), width), IGNORED)
        positions = torch.zeros((len(rows), width), dtype=torch.long)
        for index, row in enumerate(rows):
            length = len(row["input_ids"])
            ids[index, :length] = torch.tensor(row["input_ids"])
            labels[index, :length] = torch.tensor(_labels(row))
            documents = (*row["seq_lengths"], width - length)
            positions[index] = torch.cat([torch.arange(one) for one in documents])
        return {"input_ids": ids, "labels": labels, "position_ids": positions}


def _labels(row: Mapping[str, list[int]]) -> list[int]:
    """Labels with the first token of each document masked: nothing before it may predict it."""
    labels = list(row["labels"])
    start = 0
    for length in row["seq_lengths"]:
        labels[start] = IGNORED
        start += length
    return labels
