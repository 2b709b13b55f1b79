"""The training data as the trainer takes it: tokenised once, packed, kept as Arrow on disk.

Every row is accounted for: bad rows stop the run, samples that the cut leaves without a label are
left out and counted (a trainer that keeps them reports a loss of zero, one that drops them in
silence may end with nothing), and the share that no longer ends in a stop token is known before
the first step.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loracle.catalog.datasets import Sample, Turn, data_files, read_dataset
from loracle.errors import DataError
from loracle.jobs.runs import read_json, write_json
from loracle.jobs.train.templates import encode, prompts_hash

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

_LAYOUT = 1  # part of the cache key: raise it when what is stored changes
_PARALLEL_FROM = 4000  # samples below which starting workers costs more than it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of the rows. `unended` samples are whole, yet their last label ends nothing."""

    rows: int
    samples: int
    cut: int = 0
    unlabelled: int = 0
    unended: int = 0
    tokens: int = 0
    label_tokens: int = 0
    sequences: int = 0
    longest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Everything that decides what the tokenised set holds."""

    source: str
    format: str = "auto"
    train_on: str = "auto"
    seq_len: int = 2048
    packing: bool = True
    seed: int = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A tokenised set, its counts and what it was made from.

    Rows have `input_ids`, `labels` and `seq_lengths` (lengths of the documents in a row).
    """

    dataset: "Dataset"
    counts: Counts
    files: tuple[Mapping[str, object], ...]
    prompts_hash: str


def prepare_data(
    spec: DataSpec,
    tokenizer: "PreTrainedTokenizerBase",
    stop_ids: set[int],
    *,
    cache: Path | None = None,
    num_workers: int | None = None,
) -> Prepared:
    """Read, render, tokenise and pack a data set, or take it from the cache.

    Raises what `read_dataset` raises, and DataError: E026 a row that the template refuses, E027
    no sample with a label left.
    """
    files = tuple(file_facts(path) for path in data_files(spec.source))
    folder = (cache or _cache_folder()) / _key(spec, files, tokenizer, stop_ids)
    if not (folder / "counts.json").is_file():
        _build(folder, spec, tokenizer, stop_ids, num_workers)
    from datasets import load_from_disk

    stored = read_json(folder / "counts.json")
    return Prepared(
        dataset=load_from_disk(str(folder / "rows")),
        counts=Counts(**stored["counts"]),  # type: ignore[arg-type]
        files=files,
        prompts_hash=str(stored["prompts_hash"]),
    )


def longest_rows(prepared: Prepared, count: int) -> Prepared:
    """The same set with its longest rows only: those that a peak comes from."""
    lengths = [sum(one) for one in prepared.dataset["seq_lengths"]]
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return replace(prepared, dataset=prepared.dataset.select(order[:count]))


def unpack(prepared: Prepared, seed: int) -> Prepared:
    """The same set with one document a row, shuffled: packing has cut none of them.

    In memory, since several processes may do it at once beside the same cache.
    """
    plain = prepared.dataset.map(_documents, batched=True, keep_in_memory=True)
    rows = plain.shuffle(seed=seed, keep_in_memory=True).flatten_indices(keep_in_memory=True)
    return replace(prepared, dataset=rows, counts=replace(prepared.counts, sequences=len(rows)))


def file_facts(path: Path) -> dict[str, object]:
    """Name, size and SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"path": str(path), "bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def pack(rows: "Dataset", seq_len: int, *, packing: bool, seed: int) -> "Dataset":
    """Shuffled rows of up to `seq_len` tokens with `seq_lengths`; one sample a row unpacked."""
    shuffled = rows.select_columns(["input_ids", "labels"]).shuffle(seed=seed)
    if not packing:
        return shuffled.map(
            lambda batch: {"seq_lengths": [[len(ids)] for ids in batch["input_ids"]]}, batched=True
        )
    from trl import pack_dataset

    packed = pack_dataset(shuffled.flatten_indices(), seq_len, "bfd")
    return packed.shuffle(seed=seed).flatten_indices()


def _documents(batch: Mapping[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Packed rows as rows of one document; batches know nothing of each other."""
    rows: dict[str, list[list[int]]] = {name: [] for name in batch}
    for index, lengths in enumerate(batch["seq_lengths"]):
        start = 0
        for length in lengths:
            for name in ("input_ids", "labels"):
                rows[name].append(batch[name][index][start : start + length])
            rows["seq_lengths"].append([length])
            start += length
    return rows


def _build(
    folder: Path,
    spec: DataSpec,
    tokenizer: "PreTrainedTokenizerBase",
    stop_ids: set[int],
    num_workers: int | None,
) -> None:
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    data = read_dataset(spec.source, format=spec.format)
    encoded = _encode_all(data.samples, spec, tokenizer, stop_ids, num_workers)
    kept = encoded.filter(lambda flags: [flag > 0 for flag in flags], input_columns=["labelled"],
                          batched=True)  # fmt: skip
    if len(kept) == 0:
        raise DataError(
            "error.train.no_labels", code="E027", hint="hint.train.no_labels", path=spec.source,
            samples=len(data.samples), seq_len=spec.seq_len,
        )  # fmt: skip
    rows = pack(kept, spec.seq_len, packing=spec.packing, seed=spec.seed)
    counts = Counts(
        rows=data.report.num_rows,
        samples=len(kept),
        cut=sum(encoded["cut"]),
        unlabelled=len(encoded) - len(kept),
        unended=sum(kept["unended"]),
        tokens=sum(kept["length"]),
        label_tokens=sum(kept["labelled"]),
        sequences=len(rows),
        longest=max(kept["length"]),
    )
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    beside.mkdir(parents=True, exist_ok=True)
    rows.save_to_disk(str(beside / "rows"))
    write_json(
        beside / "counts.json",
        {"counts": asdict(counts), "prompts_hash": prompts_hash(tokenizer, data.samples)},
    )
    try:
        beside.rename(folder)
    except OSError:  # another process made the same set meanwhile
        shutil.rmtree(beside, ignore_errors=True)


def _encode_all(
    samples: Iterable[Sample],
    spec: DataSpec,
    tokenizer: "PreTrainedTokenizerBase",
    stop_ids: set[int],
    num_workers: int | None,
) -> "Dataset":
    from datasets import Dataset, Features, List, Value

    texts = Dataset.from_dict({"sample": [json.dumps(asdict(one)) for one in samples]})
    workers = num_workers or (os.cpu_count() or 1 if len(texts) >= _PARALLEL_FROM else 1)
    tokens = List(Value("int32"))
    columns = ("length", "labelled", "cut", "unended")
    return texts.map(
        _encode_batch,
        batched=True,
        batch_size=200,
        remove_columns=["sample"],
        num_proc=workers if workers > 1 else None,
        fn_kwargs={"tokenizer": tokenizer, "spec": spec, "stop_ids": stop_ids},
        features=Features(
            {"input_ids": tokens, "labels": tokens, **{name: Value("int64") for name in columns}}
        ),
        load_from_cache_file=False,
    )


def _encode_batch(
    batch: Mapping[str, list[str]],
    tokenizer: "PreTrainedTokenizerBase",
    spec: DataSpec,
    stop_ids: set[int],
) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        name: [] for name in ("input_ids", "labels", "length", "labelled", "cut", "unended")
    }
    for text in batch["sample"]:
        whole = encode(tokenizer, _sample(json.loads(text)), spec.train_on)
        kept = whole.cut(spec.seq_len)
        is_cut = len(whole.input_ids) > spec.seq_len
        columns["input_ids"].append(kept.input_ids)
        columns["labels"].append(kept.labels)
        columns["length"].append(len(kept.input_ids))
        columns["labelled"].append(kept.num_labels)
        columns["cut"].append(int(is_cut))
        columns["unended"].append(int(not is_cut and whole.last_label not in stop_ids))
    return columns


def _sample(fields: dict[str, Any]) -> Sample:
    turns = tuple(
        Turn(turn["role"], turn["content"], tuple(turn["tool_calls"]))
        for turn in fields["messages"]
    )
    return Sample(**fields | {"messages": turns, "tools": tuple(fields["tools"])})


def _key(
    spec: DataSpec,
    files: tuple[Mapping[str, object], ...],
    tokenizer: "PreTrainedTokenizerBase",
    stop_ids: set[int],
) -> str:
    """A name that changes with anything that changes the result."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = (
        _LAYOUT,
        asdict(spec) | {"source": ""},
        [one["sha256"] for one in files],
        backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items()),
        tokenizer.chat_template,
        (tokenizer.bos_token_id, tokenizer.eos_token_id, sorted(stop_ids)),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _cache_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("loracle") / "tokens"
