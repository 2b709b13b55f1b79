"""A source that writes down every answer of another one, as a recording that can be replayed.

The file holds what an audit asked and was told, and nothing else: UUIDs and serials are hashed
before they get here, paths are base names, and of the environment only that a known variable is
set.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml

from loracle.jobs.audit.replay import SCHEMA
from loracle.jobs.audit.source import Refused, Source

_UNORDERED = ("durations_us", "gaps_ms")


class Recorder:
    """Passes every question on (the `Source` protocol) and keeps the answers."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.document: dict[str, Any] = {
            "nvml": {"system": {}, "devices": []},
            "files": {},
            "facts": {},
            "probes": {"devices": []},
        }

    def nvml(self, key: str, device: int | None = None) -> Any:
        """Ask, and keep the answer."""
        section = self.document["nvml"]
        place = section["system"] if device is None else _entry(section["devices"], device)
        return self._kept(place, key, lambda: self._source.nvml(key, device))

    def read(self, path: str) -> str:
        """Ask, and keep the text."""
        return self._kept(self.document["files"], path, lambda: self._source.read(path))

    def fact(self, key: str) -> Any:
        """Ask, and keep the fact; time and length go to the head of the file."""
        if key == "run":
            run = self._source.fact(key)
            self.document["recorded_at"] = run["started_at"]
            self.document["seconds"] = run["seconds"]
            return run
        return self._kept(self.document["facts"], key, lambda: self._source.fact(key))

    def probe(self, name: str, device: int | None = None, **options: Any) -> Mapping[str, Any]:
        """Ask, and keep the outcome."""

        def question() -> Mapping[str, Any]:
            return self._source.probe(name, device, **options)

        if name == "cuda":
            return self._kept(self.document, "cuda", question)
        probes = self.document["probes"]
        if device is None:
            return self._kept(probes, name, question)
        key = f"gemm_{options['dtype']}" if name == "gemm" else name
        return self._kept(_entry(probes["devices"], device), key, question)

    def _kept(self, place: dict[str, Any], key: str, question: Any) -> Any:
        try:
            answer = question()
        except Refused as refusal:
            place[key] = {"refused": refusal.reason}
            raise
        place[key] = shortened(answer)
        return answer

    def text(self, *, title: str, sold: str | None = None) -> str:
        """The recording as YAML."""
        head = {"schema": SCHEMA, "title": title} | ({"sold": sold} if sold else {})
        return yaml.safe_dump(
            head | self.document, sort_keys=False, allow_unicode=True, width=100,
            default_flow_style=None,
        )  # fmt: skip


def _entry(entries: list[dict[str, Any]], at: int) -> dict[str, Any]:
    while len(entries) <= at:
        entries.append({})
    return entries[at]


def shortened(answer: Any) -> Any:
    """Numbers to six digits; durations, whose order says nothing, as values and counts."""
    if isinstance(answer, Mapping):
        return {
            str(key): _counted(value) if key in _UNORDERED else shortened(value)
            for key, value in answer.items()
        }
    if isinstance(answer, list | tuple):
        return [shortened(one) for one in answer]
    if isinstance(answer, float):
        return float(f"{answer:.6g}")
    return answer


def _counted(series: Any) -> dict[str, list[list[float]]]:
    counts = Counter(float(f"{one:.4g}") for one in series)
    return {"repeated": [[value, count] for value, count in sorted(counts.items())]}
