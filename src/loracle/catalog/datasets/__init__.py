"""Data sets: rows of a file to samples, and samples to the facts that a plan needs."""

from loracle.catalog.datasets.facts import DataCount, count_data, count_large, data_facts
from loracle.catalog.datasets.large import is_large, sample_large
from loracle.catalog.datasets.reader import data_files, read_dataset
from loracle.catalog.datasets.samples import DataReport, DataSet, RowProblem, Sample, Turn
from loracle.catalog.datasets.tokens import CharacterCounter, TokenizerCounter, find_counter

__all__ = [
    "CharacterCounter",
    "DataCount",
    "DataReport",
    "DataSet",
    "RowProblem",
    "Sample",
    "TokenizerCounter",
    "Turn",
    "count_data",
    "count_large",
    "data_facts",
    "data_files",
    "find_counter",
    "is_large",
    "read_dataset",
    "sample_large",
]  # fmt: skip
