"""Answers on disk, item by item, so that an interrupted evaluation goes on where it was.

One file per subject, named by a fingerprint of everything that could change an answer: weights,
prompts, decoding. Another model or another data set starts another file and mixes nothing.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from loracle.jobs.evaluate.answers import Answer
from loracle.jobs.evaluate.fidelity import Fidelity


class Store:
    """The answers of one subject."""

    def __init__(self, folder: Path, subject_id: str, facts: Mapping[str, object]) -> None:
        text = json.dumps(facts, sort_keys=True, default=str)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.path = folder / "items" / f"{subject_id}-{self.fingerprint}.jsonl"
        self._facts = facts

    def read(self) -> dict[int, Answer]:
        """Answers by row; a last line torn by a crash is left out."""
        found: dict[int, Answer] = {}
        if not self.path.is_file():
            return found
        for line in self.path.read_text("utf-8").splitlines():
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if "row" in document:
                    found[document["row"]] = Answer(
                        **{key: document[key] for key in Answer.__dataclass_fields__}
                    )
        return found

    def append(self, answers: Iterable[Answer], extra: Mapping[int, Mapping[str, object]]) -> None:
        """Add a batch in one write; `extra` are fields by row for the reader (question, scores)."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{**asdict(one), **extra.get(one.row, {})} for one in answers]
        head = ""
        if not self.path.is_file():
            head = _line({"schema": "loracle.evaluation-items/1", **self._facts})
        elif not _ends_line(self.path):
            head = "\n"
        with self.path.open("a", encoding="utf-8") as file:
            file.write(head + "".join(_line(one) for one in rows))
            file.flush()
            os.fsync(file.fileno())

    @property
    def fidelity_path(self) -> Path:
        """Where the comparison with the reference's distributions is kept."""
        return self.path.with_suffix(".fidelity.json")

    def read_fidelity(self, reference: str) -> Fidelity | None:
        """The kept comparison with this reference (a fingerprint), if there is one."""
        try:
            document = json.loads(self.fidelity_path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        if document.pop("reference", None) != reference:
            return None
        return Fidelity(**document)

    def write_fidelity(self, reference: str, fidelity: Fidelity) -> None:
        """Keep a comparison."""
        document = {"reference": reference, **asdict(fidelity)}
        self.fidelity_path.parent.mkdir(parents=True, exist_ok=True)
        self.fidelity_path.write_text(json.dumps(document) + "\n", "utf-8")


def _line(document: Mapping[str, object]) -> str:
    return json.dumps(document, ensure_ascii=False, default=str) + "\n"


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
