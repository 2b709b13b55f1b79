"""The merge: shard by shard, tensor by tensor, into a folder that appears when it is whole."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loracle.errors import MachineError, MissingExtra, RunError
from loracle.jobs.merge.adapter import Adapter, check_finite, read_adapter
from loracle.jobs.merge.base import INDEX, Base, read_base
from loracle.jobs.merge.changes import Changes, match
from loracle.jobs.merge.delta import merged_embedding, merged_weight
from loracle.jobs.merge.files import write_config, write_generation_config, write_tokenizer
from loracle.jobs.merge.quantised import Nf4, quantised_modules, round_trip
from loracle.jobs.merge.tensors import TensorFile, TensorWriter
from loracle.jobs.writing import writing

if TYPE_CHECKING:
    from torch import Tensor

ONTO = ("base16", "dequantised")
RECORD = "loracle-merge.json"
Progress = Callable[[int, int], None]  # tensors done, tensors in all


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What a merge made. `changed` counts tensors that differ from the base's."""

    folder: Path
    onto: str
    num_tensors: int
    changed: int
    num_bytes: int
    shards: int
    stop_ids: tuple[int, ...]
    unties_embeddings: bool


def merge(
    adapter_folder: Path,
    base_folder: Path,
    out: Path,
    *,
    onto: str = "base16",
    nf4: Nf4 | None = None,
    tokenizer_folder: Path | None = None,
    facts: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    prove: Callable[[Path], Mapping[str, object]] | None = None,
) -> MergeResult:
    """Write adapter plus base as a 16-bit model folder at `out`.

    `onto` is `base16` (the base as it is) or `dequantised` (sent through NF4 and back as in
    training; needs `nf4`). The tokenizer comes from `tokenizer_folder`, else the adapter's folder
    where it holds one, else the base's. `facts` go into the folder's record, and what `prove`
    returns of the folder that is written but not yet at `out`; where it raises, nothing stays.

    Memory is a few copies of the largest tensor, whatever the shards are. Nothing appears at
    `out` before everything is written and flushed.

    Raises:
        RunError: E065, E076 to E079 (adapter, weights, kind, base, shape), E068 where `out` exists.
        MachineError: E053 not enough room on the disk, E054 a place that cannot be written.
        MissingExtra: without torch, or bitsandbytes for `dequantised`.
    """
    assert onto in ONTO
    adapter, base, changes = check_merge(adapter_folder, base_folder, out)
    job = _Job(base, adapter, changes, *_quantisation(base, onto, nf4))
    with writing(out), _appearing(out) as folder:
        total = len(base.shard_of) + len(changes.added_from_adapter) + len(changes.added_copies)
        _write_shards(job, folder, total, progress)
        stop_ids = _write_rest(job, folder, tokenizer_folder or _tokenizer_folder(adapter, base))
        proof = prove(folder) if prove is not None else {}
        _write_record(job, folder, onto, nf4, {**(facts or {}), **proof})
    return MergeResult(
        folder=out,
        onto=onto,
        num_tensors=total,
        changed=len({*changes.lora, *changes.biases, *changes.whole, *changes.tokens}),
        num_bytes=sum(path.stat().st_size for path in out.glob("*.safetensors")),
        shards=len(base.shards),
        stop_ids=stop_ids,
        unties_embeddings=changes.unties,
    )


def check_merge(
    adapter_folder: Path, base_folder: Path, out: Path
) -> tuple[Adapter, Base, Changes]:
    """All that can be refused before a model is loaded or a byte is written; raises as `merge`."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtra("train", "torch") from error
    adapter, base = read_adapter(adapter_folder), read_base(base_folder)
    changes = match(base, adapter)
    check_finite(adapter.file)
    refuse_existing(out)
    _check_disk(base, out.parent)
    return adapter, base, changes


@dataclass(frozen=True, slots=True)
class _Job:
    base: Base
    adapter: Adapter
    changes: Changes
    nf4: Nf4 | None
    quantised: frozenset[str]  # tensor names that go through NF4


def _quantisation(base: Base, onto: str, nf4: Nf4 | None) -> tuple[Nf4 | None, frozenset[str]]:
    if onto == "base16":
        return None, frozenset()
    if nf4 is None:
        raise RunError("error.merge.no_quant", code="E065", hint="hint.merge.quant")
    modules = quantised_modules(base.folder, nf4)
    tensors = frozenset(f"{name}.weight" for name in modules)
    if missing := tensors - base.shard_of.keys():
        raise RunError("error.merge.cannot.no_tensor", code="E065", key=min(missing))
    return nf4, tensors


def _write_shards(job: _Job, folder: Path, total: int, progress: Progress | None) -> None:
    base, changes = job.base, job.changes
    done = 0
    weight_map: dict[str, str] = {}
    last = list(base.shards)[-1]
    for shard, source in base.shards.items():
        layout = {name: (one.dtype, one.shape) for name, one in source.entries.items()}
        added = _added_layout(job) if shard == last else {}
        writer = TensorWriter(folder / shard, layout | added)
        try:
            for name in layout:
                _write_tensor(job, writer, source, name)
                done += 1
                if progress is not None:
                    progress(done, total)
            for name in added:
                writer.write(name, _added(job, name))
        except BaseException:
            writer.abandon()
            raise
        writer.close()
        weight_map |= dict.fromkeys((*layout, *added), shard)
    if base.has_index:
        size = base.num_bytes + sum(
            _bytes_of(job, name) for name in (*changes.added_from_adapter, *changes.added_copies)
        )
        _write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})


def _write_tensor(job: _Job, writer: TensorWriter, source: TensorFile, name: str) -> None:
    changes = job.changes
    touched = (changes.lora, changes.biases, changes.whole, changes.tokens)
    if name not in job.quantised and not any(name in one for one in touched):
        writer.copy(name, source)
        return
    writer.write(name, _new_tensor(job, source, name))


def _new_tensor(job: _Job, source: TensorFile, name: str) -> "Tensor":
    changes, adapter, file = job.changes, job.adapter, job.adapter.file
    tensor = source.read(name)
    if name in changes.whole:  # first: a head or embedding may be saved and adapted as well
        tensor = file.read(changes.whole[name]).to(tensor.dtype)
    elif name in job.quantised and job.nf4 is not None:
        tensor = round_trip(tensor, job.nf4)
    if name in changes.lora:
        module = changes.lora[name]
        a, b = file.read(module.a), file.read(module.b)
        if module.is_embedding:
            return merged_embedding(tensor, a, b, module.scaling)
        return merged_weight(
            tensor, a, b, module.scaling,
            magnitude=file.read(module.magnitude) if module.magnitude else None,
            fan_in_fan_out=adapter.fan_in_fan_out,
        )  # fmt: skip
    if name in changes.biases:
        module = changes.biases[name]
        assert module.bias is not None
        tensor += file.read(module.bias).float() * module.scaling
    if name in changes.tokens:
        module_name = changes.tokens[name]
        rows = adapter.token_indices(module_name)
        tensor[rows] = file.read(adapter.tokens[module_name]).to(tensor.dtype)
    return tensor


def _added_layout(job: _Job) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of tensors that the base lacks, in the embedding's dtype."""
    base, changes = job.base, job.changes
    found = {}
    for name, key in changes.added_from_adapter.items():
        shape = job.adapter.file.entries[key].shape
        dtype = next(
            one.dtype
            for file in base.shards.values()
            for one in file.entries.values()
            if one.shape == shape
        )
        found[name] = (dtype, shape)
    for name, original in changes.added_copies.items():
        entry = base.shards[base.shard_of[original]].entries[original]
        found[name] = (entry.dtype, entry.shape)
    return found


def _added(job: _Job, name: str) -> "Tensor":
    from loracle.jobs.merge.tensors import torch_dtype

    if name in job.changes.added_from_adapter:
        tensor = job.adapter.file.read(job.changes.added_from_adapter[name])
        return tensor.to(torch_dtype(_added_layout(job)[name][0]))
    original = job.changes.added_copies[name]
    return job.base.shards[job.base.shard_of[original]].read(original)


def _bytes_of(job: _Job, name: str) -> int:
    from loracle.jobs.merge.tensors import DTYPE_BYTES

    dtype, shape = _added_layout(job)[name]
    return DTYPE_BYTES[dtype] * shape[0] * shape[1]


def _write_rest(job: _Job, folder: Path, tokenizer_folder: Path) -> tuple[int, ...]:
    write_config(job.base.folder, folder, unties=job.changes.unties)
    write_tokenizer(tokenizer_folder, job.base.folder, folder)
    return write_generation_config(job.base.folder, tokenizer_folder, folder)


def _tokenizer_folder(adapter: Adapter, base: Base) -> Path:
    """The folder that training saved its tokenizer to: the adapter's where it is there."""
    has_own = (adapter.folder / "tokenizer_config.json").is_file()
    return adapter.folder if has_own else base.folder


def _write_record(
    job: _Job, folder: Path, onto: str, nf4: Nf4 | None, facts: Mapping[str, object]
) -> None:
    """What went into the merge, so that an evaluation can tell one merged model from another."""
    record = {
        "schema": "loracle.merge/1",
        "onto": onto,
        "nf4": asdict(nf4) if nf4 and onto != "base16" else None,
        "changed": sorted({*job.changes.lora, *job.changes.whole, *job.changes.tokens}),
        **facts,
    }
    _write_json(folder / RECORD, record)


def refuse_existing(out: Path) -> None:
    """Raise RunError E068 where something is at `out` already; an empty folder is nothing."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RunError("error.merge.exists", code="E068", hint="hint.merge.out", path=str(out))


def _check_disk(base: Base, parent: Path) -> None:
    """Room for the merged model, with 2 % and 64 MB to spare; checked where it will be written."""
    parents = (parent, *parent.absolute().parents)
    existing = next(one for one in parents if one.is_dir())
    if not os.access(existing, os.W_OK) or any(one.is_file() for one in parents):
        raise MachineError(
            "error.not_written", code="E054", hint="hint.not_written", path=str(parent),
            cause=os.strerror(errno.EACCES if existing == parent else errno.ENOTDIR),
        )  # fmt: skip
    free = shutil.disk_usage(existing).free
    need = round(base.num_bytes * 1.02) + (64 << 20)
    if free < need:
        raise MachineError(
            "error.merge.disk", code="E053", path=str(existing), free_bytes=free, need_bytes=need,
            free=f"{free / 1e9:.1f}", need=f"{need / 1e9:.1f}",
        )  # fmt: skip


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that takes its name at the end, or is removed on any failure."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for left_over in out.parent.glob(f".{out.name}.merging-*"):
        if not _writer_lives(left_over):
            shutil.rmtree(left_over, ignore_errors=True)
    folder = out.parent / f".{out.name}.merging-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
        _flush_folder(folder)
        if out.is_dir():
            out.rmdir()  # empty, or the merge would have been refused
        folder.rename(out)
        _flush_folder(out.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _writer_lives(folder: Path) -> bool:
    number = folder.name.rpartition("-")[2]
    return number.isdigit() and Path(f"/proc/{number}").exists()


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_json(path: Path, document: Mapping[str, object] | Iterable[object]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n", "utf-8")
