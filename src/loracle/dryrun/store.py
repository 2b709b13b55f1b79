"""A trace as bytes, and the name it goes by, so that callers can keep it on disk.

This module opens no file: whoever owns a cache folder writes `pack(trace)` under `key(...)` and
reads it back with `unpack`. The key covers everything that a trace depends on: the config, the
knobs, the card's compute capability, the versions of the libraries and of this engine.
"""

import hashlib
import json
import zlib
from dataclasses import asdict, fields

from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Op, Owner, Trace
from loracle.dryrun.trace import software
from loracle.errors import EngineError

ENGINE = 2  # raise it whenever the engine logs something else for the same setup


def key(setup: TrainingSetup, capability: tuple[int, int]) -> str:
    """64 hexadecimal digits that name the trace of this setup."""
    knobs = {f.name: getattr(setup, f.name) for f in fields(setup) if f.name != "model"}
    knobs["lora"] = None if setup.lora is None else asdict(setup.lora)
    content = {
        "config": dict(setup.model.config), "knobs": knobs, "capability": list(capability),
        "software": software(), "engine": ENGINE,
    }  # fmt: skip
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def pack(trace: Trace) -> bytes:
    """The trace as compressed JSON."""
    content = {f.name: getattr(trace, f.name) for f in fields(trace)}
    content["owners"] = [[o.module, o.kind, o.op] for o in trace.owners]
    content["ops"] = [list(asdict(op).values()) for op in trace.ops]
    content["software"] = dict(trace.software)
    return zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 3)


def unpack(data: bytes) -> Trace:
    """The trace that `pack` wrote. Raises EngineError where the bytes are no trace."""
    try:
        content = json.loads(zlib.decompress(data))
        content["owners"] = tuple(Owner(*o) for o in content["owners"])
        content["ops"] = tuple(
            Op(*before, tuple(shape), *after)
            for *before, shape, phase, count, launches in content["ops"]
            for after in [(phase, count, launches)]
        )
        content["marks"] = tuple((at, phase) for at, phase in content["marks"])
        for name in ("events", "sizes", "owner_of", "notes"):
            content[name] = tuple(content[name])
        return Trace(**content)
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise EngineError("dryrun.broken_cache", reason=str(error)) from error
