"""A dry run's trace as a file: compressed JSON, keyed by everything that it depends on."""

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, astuple
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Op, Owner, Trace

FORMAT = 1


def trace_key(
    setup: TrainingSetup, capability: tuple[int, int], software: Mapping[str, str]
) -> str:
    """The name of a trace: a digest of the configuration, the knobs, the libraries and our code."""
    plain = asdict(setup)
    plain["model"] = dict(setup.model.config)
    content = [FORMAT, plain, capability, dict(software), _own_code()]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace whole or not at all."""
    plain = asdict(trace)
    plain["owners"] = [astuple(owner) for owner in trace.owners]
    plain["ops"] = [astuple(op) for op in trace.ops]
    raw = zlib.compress(json.dumps(plain, separators=(",", ":")).encode(), 1)
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(raw)
    partial.replace(path)


def read_trace(path: Path) -> Trace | None:
    """The trace of a file, or None where it is missing or broken: then it is made again."""
    try:
        plain: dict[str, Any] = json.loads(zlib.decompress(path.read_bytes()))
        return Trace(
            events=tuple(plain["events"]),
            sizes=tuple(plain["sizes"]),
            owners=tuple(Owner(*row) for row in plain["owners"]),
            owner_of=tuple(plain["owner_of"]),
            marks=tuple((at, phase) for at, phase in plain["marks"]),
            ops=tuple(_op(row) for row in plain["ops"]),
            num_kernels=plain["num_kernels"],
            trainable_params=plain["trainable_params"],
            managed_bytes=plain["managed_bytes"],
            software=plain["software"],
            notes=tuple(plain["notes"]),
        )
    except (OSError, zlib.error, ValueError, KeyError, TypeError):
        return None


def _op(row: list[Any]) -> Op:
    kind, name, flops, moved, dtype, shape, *rest = row
    return Op(kind, name, flops, moved, dtype, tuple(shape), *rest)


@cache
def _own_code() -> str:
    """A digest of the dry run's source: a trace of older code is made again."""
    spec = find_spec("loracle.dryrun")
    assert spec is not None
    assert spec.origin is not None
    digest = hashlib.sha256()
    for path in sorted(Path(spec.origin).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
