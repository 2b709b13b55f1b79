"""A recorded machine as a source: one YAML file that answers for every path.

`docs/recorded-machines.md` is the format for people. In short: a recording may be `based_on`
another and state only what differs; `{refused: NotSupported}` anywhere stands for a source that
will not answer; long series may be written short, as `{repeated: [[1000, 400], [2010, 90]]}`
(value and count) or as knots (`{knots: [[0, 2600], [60, 1800]]}`, second and value, read at the
sample times in between by straight lines).
"""

from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from loracle.errors import InputError
from loracle.jobs.audit.nvml import GETTERS
from loracle.jobs.audit.source import REASONS, Refused

SCHEMA = "loracle.recorded-machine/1"
SHIPPED = Path(__file__).parent / "recordings"
_KEYS = {
    "schema", "title", "case", "based_on", "recorded_at", "seconds", "sold", "expect", "nvml",
    "cuda", "files", "facts", "probes", "tool",
}  # fmt: skip


def shipped() -> tuple[Path, ...]:
    """The recordings that come with loracle."""
    return tuple(sorted(SHIPPED.glob("*.yaml")))


def find_recording(name: str) -> Path:
    """A file, or a shipped recording by name; raises InputError E070."""
    for path in (Path(name), SHIPPED / name, SHIPPED / f"{name}.yaml"):
        if path.is_file():
            return path
    known = ", ".join(path.stem for path in shipped())
    raise InputError(
        "error.no_recording", code="E070", hint="hint.recordings", path=name, names=known
    )


def load_recording(path: Path) -> dict[str, Any]:
    """The recording with what it is based on merged in; raises InputError E070, E071."""
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            "error.bad_recording", code="E071", path=path.name, reason=str(error).split("\n")[0]
        ) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError("error.bad_recording", code="E071", path=path.name, reason=f"no {SCHEMA}")
    if strange := sorted(set(document) - _KEYS):
        raise InputError(
            "error.bad_recording", code="E071", path=path.name, reason=", ".join(strange)
        )
    base = document.pop("based_on", None)
    if base is None:
        return document
    beside = path.parent / base
    whole = load_recording(beside if beside.is_file() else find_recording(base))
    whole.pop("expect", None)  # what is expected of the base says nothing about the change
    return merge(whole, document)


def merge(base: Any, change: Any) -> Any:
    """`change` laid over `base`: mappings and lists of mappings by entry, the rest replaced.

    A mapping with the single key `refused`, `repeated` or `knots` replaces what was there whole,
    and `{replace: [...]}` replaces a list of mappings.
    """
    if isinstance(change, Mapping) and set(change) == {"replace"}:
        return change["replace"]
    if isinstance(base, Mapping) and isinstance(change, Mapping):
        if len(change) == 1 and set(change) <= {"refused", "repeated", "knots"}:
            return change
        merged = dict(base)
        for key, value in change.items():
            merged[key] = merge(base[key], value) if key in base else value
        return merged
    if _mappings(base) and _mappings(change):
        longer = max(len(base), len(change))
        return [
            merge(base[at], change[at]) if at < min(len(base), len(change))
            else (change[at] if at < len(change) else base[at])
            for at in range(longer)
        ]  # fmt: skip
    return change


def _mappings(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(one, Mapping) for one in value)


class Replay:
    """A recording that answers like a machine (the `Source` protocol)."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document

    def nvml(self, key: str, device: int | None = None) -> Any:
        """The recorded answer of one NVML getter."""
        assert key in GETTERS, key
        section = _answer(self.document.get("nvml"), "NVML")
        if device is None:
            return _answer(section.get("system", {}).get(key, _MISSING), key)
        devices = section.get("devices", [])
        if device >= len(devices):
            raise Refused("NotFound", key)
        entry = _answer(devices[device], key)
        return _answer(entry.get(key, entry.get("otherwise", _MISSING)), key)

    def read(self, path: str) -> str:
        """The recorded text of a file."""
        files = _answer(self.document.get("files", {}), path)
        return str(_answer(files.get(path, _MISSING), path))

    def fact(self, key: str) -> Any:
        """A recorded fact; the run's own time and length come from the head of the file."""
        if key == "run":
            return {
                "started_at": str(self.document.get("recorded_at", "")),
                "seconds": float(self.document.get("seconds", 0)),
            }
        return _answer(_answer(self.document.get("facts", {}), key).get(key, _MISSING), key)

    def probe(self, name: str, device: int | None = None, **options: Any) -> Mapping[str, Any]:
        """The recorded outcome of one probe; `gemm` is recorded by dtype."""
        if name == "cuda":
            return _answer(self.document.get("cuda", _MISSING), name)
        probes = _answer(self.document.get("probes", {}), name)
        if device is None:
            return _opened(_answer(probes.get(name, _MISSING), name))
        devices = probes.get("devices", [])
        if device >= len(devices):
            raise Refused("NotFound", name)
        entry = _answer(devices[device], name)
        key = f"gemm_{options['dtype']}" if name == "gemm" else name
        return _opened(_answer(entry.get(key, _MISSING), key))


_MISSING: dict[str, Any] = {"refused": "NotSupported"}


def _answer(value: Any, what: str) -> Any:
    """The value, or its refusal."""
    if value is None:
        raise Refused("NotSupported", what)
    if isinstance(value, Mapping) and set(value) <= {"refused", "detail"} and "refused" in value:
        reason = str(value["refused"])
        raise Refused(reason if reason in REASONS else "Failed", str(value.get("detail", what)))
    return value


def _opened(value: Any, times: list[float] | None = None) -> Any:
    """Short series written out; refusals inside a probe's answer become None."""
    if isinstance(value, Mapping):
        if set(value) == {"repeated"}:
            return [_opened(one) for one, count in value["repeated"] for _ in range(int(count))]
        if set(value) == {"knots"}:
            return [_at(value["knots"], second) for second in times or []]
        if set(value) == {"every", "to"}:
            step, end = float(value["every"]), float(value["to"])
            return [step * (at + 1) for at in range(int(end / step))]
        if set(value) == {"refused"}:
            return None
        own = _opened(value["seconds"]) if "seconds" in value and "flops_per_s" in value else times
        return {key: _opened(one, own) for key, one in value.items()}
    if isinstance(value, list):
        return [_opened(one, times) for one in value]
    return value


def _at(knots: list[list[float]], second: float) -> float:
    """The value of a piecewise straight curve."""
    starts = [knot[0] for knot in knots]
    right = bisect_right(starts, second)
    if right == 0:
        return knots[0][1]
    if right == len(knots):
        return knots[-1][1]
    (t0, v0), (t1, v1) = knots[right - 1], knots[right]
    return v0 + (v1 - v0) * (second - t0) / (t1 - t0)
