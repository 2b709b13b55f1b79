"""Read and write safetensors one tensor at a time.

The library maps a whole shard into memory and wants a whole shard to write one. Here a merge holds
one tensor, whatever the shards are, so a 70B model merges on a laptop. The format is a JSON header
of names, dtypes, shapes and byte ranges, then the bytes.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loracle.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor, dtype

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
_BLOCK = 16 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: dtype as safetensors spells it, shape, first and last byte."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.stop - self.start


class TensorFile:
    """A safetensors file, read tensor by tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries, self.metadata, self._data_start = _read_header(path)

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def read(self, name: str) -> "Tensor":
        """One tensor, in memory of its own."""
        import torch

        entry = self.entries[name]
        data = bytearray(entry.num_bytes)
        with self.path.open("rb") as file:
            file.seek(self._data_start + entry.start)
            file.readinto(data)
        if not data:
            return torch.empty(entry.shape, dtype=torch_dtype(entry.dtype))
        return torch.frombuffer(data, dtype=torch_dtype(entry.dtype)).reshape(entry.shape)

    def blocks(self, name: str) -> Iterator[bytes]:
        """A tensor's bytes in blocks, to copy them."""
        entry = self.entries[name]
        left = entry.num_bytes
        with self.path.open("rb") as file:
            file.seek(self._data_start + entry.start)
            while left:
                block = file.read(min(left, _BLOCK))
                left -= len(block)
                yield block


class TensorWriter:
    """Writes a safetensors file whose tensors come one by one, in the order of `layout`."""

    def __init__(self, path: Path, layout: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        self.path = path
        self._waiting = list(layout)
        self._dtypes = {name: dtype for name, (dtype, _) in layout.items()}
        self._shapes = {name: shape for name, (_, shape) in layout.items()}
        self._file = path.open("wb")
        self._file.write(_header(layout))

    def write(self, name: str, tensor: "Tensor") -> None:
        """The next tensor; its dtype and shape must be those of the layout."""
        assert tensor.dtype == torch_dtype(self._dtypes[name]), (name, tensor.dtype)
        assert tuple(tensor.shape) == self._shapes[name], (name, tensor.shape)
        self._next(name)
        import torch

        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        for start in range(0, flat.numel(), _BLOCK):
            self._file.write(flat[start : start + _BLOCK].numpy().data)

    def copy(self, name: str, source: TensorFile) -> None:
        """The next tensor, byte for byte from another file."""
        self._next(name)
        for block in source.blocks(name):
            self._file.write(block)

    def close(self) -> None:
        """Flush to the disk; every tensor of the layout must have come."""
        assert not self._waiting, self._waiting
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Close without the promise that the file is whole."""
        self._file.close()

    def _next(self, name: str) -> None:
        expected = self._waiting.pop(0)
        assert name == expected, (name, expected)


def torch_dtype(name: str) -> "dtype":
    """torch's dtype for safetensors' name of it."""
    import torch

    found = getattr(torch, _TORCH_NAMES[name])
    assert isinstance(found, torch.dtype)
    return found


def _header(layout: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in layout.items():
        size = DTYPE_BYTES[dtype]
        for extent in shape:
            size *= extent
        place = [offset, offset + size]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": place}
        offset += size
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start on 8 bytes
    return len(text).to_bytes(8, "little") + text


def _read_header(path: Path) -> tuple[dict[str, Entry], dict[str, str], int]:
    """Entries by name, metadata and where the data starts; raises RunError E077 where broken."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= size - 8:
                raise ValueError("header length")
            table = json.loads(file.read(length))
        metadata = table.pop("__metadata__", {})
        entries = {
            name: Entry(one["dtype"], tuple(one["shape"]), *one["data_offsets"])
            for name, one in table.items()
        }
        last = max((entry.stop for entry in entries.values()), default=0)
        if 8 + length + last > size:
            raise ValueError(f"{8 + length + last - size} bytes are missing at the end")
        if unknown := {one.dtype for one in entries.values()} - DTYPE_BYTES.keys():
            raise ValueError(f"dtype {sorted(unknown)}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            "error.merge.broken_weights", code="E077", path=str(path), cause=str(error)
        ) from error
    return entries, metadata, 8 + length
