"""Data sets: rows of a file to samples, and samples to the facts that a plan needs."""

from loracle.catalog.datasets.facts import DataCount, count_data, data_facts
from loracle.catalog.datasets.reader import data_files, read_dataset
from loracle.catalog.datasets.samples import DataReport, DataSet, RowProblem, Sample, Turn
from loracle.catalog.datasets.tokens import CharacterCounter, TokenizerCounter, find_counter

__all__ = [
    "CharacterCounter", "DataCount", "DataReport", "DataSet", "RowProblem", "Sample",
    "TokenizerCounter", "Turn", "count_data", "data_facts", "data_files", "find_counter",
    "read_dataset",
]  # fmt: skip
