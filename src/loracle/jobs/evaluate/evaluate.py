"""The evaluation: every subject answers every item, then the results are judged side by side."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loracle.catalog.datasets import DataReport, read_dataset
from loracle.domain.plan import Hint
from loracle.errors import DataError
from loracle.jobs.evaluate import fidelity as distributions
from loracle.jobs.evaluate.answers import (
    Answer,
    Item,
    answer_all,
    batches,
    make_items,
    refuse_unknown_ids,
)
from loracle.jobs.evaluate.duplicates import find_duplicates
from loracle.jobs.evaluate.fidelity import Fidelity
from loracle.jobs.evaluate.judge import (
    Scores,
    advise,
    compare,
    same_or_not,
    scores_of,
)
from loracle.jobs.evaluate.metrics import METRICS, choose_metrics, score
from loracle.jobs.evaluate.prompts import prompt_warnings
from loracle.jobs.evaluate.result import Evaluation, Spec
from loracle.jobs.evaluate.store import Store
from loracle.jobs.evaluate.subjects import Loaded, Subject, loaded, short_memory
from loracle.jobs.runs import write_json
from loracle.jobs.train.data import file_facts
from loracle.jobs.train.facts import fingerprint_model
from loracle.jobs.train.model import load_tokenizer, special_tokens
from loracle.jobs.writing import writing

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

Progress = Callable[[str, int, int], None]  # subject, items done, items in all


def evaluate(
    subjects: Sequence[Subject],
    spec: Spec,
    folder: Path,
    *,
    device: "torch.device",
    tokenizer_source: str,
    same_prompts: bool | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Answer, score and judge; results and `report.json` go into `folder`.

    Answers that are there already, of the same weights, prompts and decoding, are not made again.
    Subject ids that start with `merged` are held against `adapter`; the others against `base`.
    `same_prompts` is what `asks_the_same` found: False is a warning of the evaluation.

    Raises:
        InputError, DataError: the held-out set is missing or bad, or has no item to score.
        RunError: E077, E079 weights or adapters that cannot be loaded.
        MachineError: E053 to E055, a full disk, a place that cannot be written, short memory.
    """
    with writing(folder):  # told before the work, not after it
        (folder / "items").mkdir(parents=True, exist_ok=True)
    data = read_dataset(spec.data, format=spec.format)
    samples = data.samples[: spec.max_items]
    tokenizer = load_tokenizer(tokenizer_source)
    every = make_items(samples, tokenizer, max_tokens=spec.max_tokens, train_on=spec.train_on)
    items = _scored_items(every, spec.data)
    references = [item.reference for item in items if item.reference is not None]
    metrics = _metrics(spec.metric, references)
    job = _Job(spec, tuple(items), metrics, tokenizer, folder, device, progress, subjects)
    answers, fidelity = job.run(subjects)
    labels = sorted(set(references)) if "accuracy" in metrics else []
    scores = {
        one.id: scores_of(one.id, items, answers[one.id], metrics, labels) for one in subjects
    }
    evaluation = _judge(
        job, subjects, scores, fidelity, data.report, len(every) - len(items),
        prompt_warnings(tokenizer, samples, same_prompts),
    )  # fmt: skip
    with writing(folder):
        write_json(folder / "report.json", evaluation.document())
    return evaluation


class _Job:
    """One pass over all subjects: what to load, what is still to be answered."""

    def __init__(
        self,
        spec: Spec,
        items: tuple[Item, ...],
        metrics: tuple[str, ...],
        tokenizer: "PreTrainedTokenizerBase",
        folder: Path,
        device: "torch.device",
        progress: Progress | None,
        subjects: Sequence[Subject],
    ) -> None:
        self.spec, self.items, self.metrics = spec, items, metrics
        self.tokenizer, self.folder, self.device = tokenizer, folder, device
        self.progress = progress
        self.groups = batches(items, spec.batch)
        self.compared = distributions.choose_groups(self.groups, len(tokenizer))
        self.captured: dict[int, torch.Tensor] = {}

        special = special_tokens(tokenizer, generation_stops(subjects))
        self.stop_ids, self.pad_id = sorted(special.stop_ids), special.pad_token_id
        weights = [one.weights for one in subjects]
        refuse_unknown_ids(items, self.pad_id, weights, tokenizer.name_or_path)

    def run(
        self, subjects: Sequence[Subject]
    ) -> tuple[dict[str, dict[int, Answer]], dict[str, Fidelity]]:
        """Answers by subject and row, and fidelity of merged subjects to the adapter."""
        stores = {one.id: Store(self.folder, one.id, self._facts(one)) for one in subjects}
        answers = {one.id: stores[one.id].read() for one in subjects}
        fidelity: dict[str, Fidelity] = {}
        reference = next((one for one in subjects if one.id == "adapter"), None)
        merged = [one for one in subjects if is_merged(one) and reference is not None]
        for one in merged:
            kept = stores[one.id].read_fidelity(stores["adapter"].fingerprint)
            if kept is not None:
                fidelity[one.id] = kept
        captures = any(one.id not in fidelity for one in merged)
        for together in _loadings(subjects):
            wanted = [
                one
                for one in together
                if self._missing(answers[one.id])
                or (one is reference and captures)
                or (one in merged and one.id not in fidelity)
            ]
            if not wanted:
                continue
            with self._short_memory(), loaded(wanted, self.device) as holder:
                for one in wanted:
                    self._answer(holder, one, stores[one.id], answers[one.id])
                    self._distributions(holder, one, stores, merged, captures, fidelity)
        return answers, fidelity

    def _short_memory(self) -> AbstractContextManager[None]:
        return short_memory(
            "error.evaluate.memory", hint="hint.evaluate.batch", batch=self.spec.batch
        )

    def _missing(self, answers: Mapping[int, Answer]) -> list[list[Item]]:
        return [group for group in self.groups if any(item.row not in answers for item in group)]

    def _answer(
        self, holder: Loaded, subject: Subject, store: Store, answers: dict[int, Answer]
    ) -> None:
        missing = self._missing(answers)
        with holder.use(subject) as model:
            for group in answer_all(
                model,
                missing,
                stop_ids=self.stop_ids,
                pad_id=self.pad_id,
                max_new_tokens=self.spec.max_new_tokens,
                tokenizer=self.tokenizer,
                generates=bool(self.metrics),
            ):
                answers |= {one.row: one for one in group}
                with writing(store.path):
                    store.append(group, self._readable(group))
                if self.progress is not None:
                    self.progress(subject.id, len(answers), len(self.items))

    def _distributions(
        self,
        holder: Loaded,
        subject: Subject,
        stores: Mapping[str, Store],
        merged: Sequence[Subject],
        captures: bool,
        fidelity: dict[str, Fidelity],
    ) -> None:
        if subject.id == "adapter" and captures:
            with holder.use(subject) as model:
                self.captured = distributions.capture(model, self.compared, self.pad_id)
        elif subject in merged and subject.id not in fidelity:
            with holder.use(subject) as model:
                found = distributions.compare(model, self.compared, self.captured, self.pad_id)
            fidelity[subject.id] = found
            with writing(self.folder):
                stores[subject.id].write_fidelity(stores["adapter"].fingerprint, found)

    def _readable(self, group: Sequence[Answer]) -> dict[int, dict[str, object]]:
        """Question, reference and scores by row, for whoever opens the file."""
        by_row = {item.row: item for item in self.items}
        found: dict[int, dict[str, object]] = {}
        for answer in group:
            item = by_row[answer.row]
            scores = {
                name: score(name, answer.text or "", item.reference or "")
                for name in self.metrics
                if name != "accuracy"
            }
            found[answer.row] = {"question": item.question, "reference": item.reference, **scores}
        return found

    def _facts(self, subject: Subject) -> dict[str, object]:
        """Everything that could change an answer."""
        weights = Path(subject.weights)
        adapter = subject.adapter and subject.adapter / "adapter_model.safetensors"
        return {
            "subject": subject.id,
            "weights": fingerprint_model(weights) if weights.is_dir() else subject.weights,
            "adapter": file_facts(adapter)["sha256"] if adapter and adapter.is_file() else None,
            "quant": subject.quant,
            "dtype": subject.dtype,
            "device": self.device.type,
            "stop_ids": self.stop_ids,
            "max_new_tokens": self.spec.max_new_tokens if self.metrics else 0,
            "batch": self.spec.batch,
            "metrics": list(self.metrics),
            "items": _digest([(one.prompt, one.tokens, one.labels) for one in self.items]),
        }


def generation_stops(subjects: Sequence[Subject]) -> list[int]:
    """Every token that any subject's generation config ends at: all subjects get the same list."""
    from transformers import GenerationConfig

    found: list[int] = []
    for one in subjects:
        try:
            ids = GenerationConfig.from_pretrained(one.weights).eos_token_id
        except OSError:  # a model without one ends at its tokenizer's token
            continue
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return list(dict.fromkeys(found))


def is_merged(subject: Subject) -> bool:
    """Whether a subject is a merged model, by its id."""
    return subject.id.startswith("merged")


def _judge(
    job: _Job,
    subjects: Sequence[Subject],
    scores: Mapping[str, Scores],
    fidelity: Mapping[str, Fidelity],
    report: DataReport,
    unscored: int,
    warnings: tuple[Hint, ...],
) -> Evaluation:
    spec = job.spec
    metric = job.metrics[0] if job.metrics else "loss"
    ids = [one.id for one in subjects]
    comparisons = {
        f"base>{one}": compare(scores["base"], scores[one], seed=spec.seed)
        for one in ids
        if "base" in ids and one != "base"
    }
    if "lora" in ids and "adapter" in ids:
        comparisons["lora>adapter"] = compare(scores["lora"], scores["adapter"], seed=spec.seed)
    equivalences = {
        one.id: same_or_not(
            scores["adapter"], scores[one.id], metric, spec.margin, fidelity.get(one.id)
        )
        for one in subjects
        if is_merged(one) and "adapter" in ids
    }
    duplicates = None
    if spec.train_data is not None:
        train = read_dataset(spec.train_data, format=spec.format, skip_bad=True)
        held_out = read_dataset(spec.data, format=spec.format).samples[: spec.max_items]
        duplicates = find_duplicates(train.samples, held_out)
    tuned = comparisons.get("base>adapter") or comparisons.get("base>tuned")
    four_bit = comparisons.get("lora>adapter", {}).get(metric)
    return Evaluation(
        spec=spec,
        metrics=job.metrics,
        items=job.items,
        report=report,
        unscored=unscored,
        scores=scores,
        comparisons=comparisons,
        equivalences=equivalences,
        duplicates=duplicates,
        hints=advise(
            metric=metric,
            tuned=tuned,
            merged=equivalences,
            four_bit=four_bit,
            margin=spec.margin,
        ),
        warnings=warnings,
        device=job.device.type,
        subjects=tuple(subjects),
    )


def _loadings(subjects: Sequence[Subject]) -> list[list[Subject]]:
    """Subjects grouped by what they load, the adapter's group first (merged ones need it)."""
    found: dict[tuple[object, ...], list[Subject]] = {}
    for one in subjects:
        found.setdefault(one.loads_like, []).append(one)
    return sorted(found.values(), key=lambda group: all(one.id != "adapter" for one in group))


def _metrics(wanted: str, references: Sequence[str]) -> tuple[str, ...]:
    if wanted == "loss":
        return ()
    chosen = choose_metrics(references)
    if wanted == "auto":
        return chosen
    assert wanted in METRICS
    return (wanted, *(one for one in chosen if one != wanted)) if references else ()


def _scored_items(items: list[Item], source: str) -> list[Item]:
    """Items with at least one labelled token left; the others cannot be scored."""
    kept = [item for item in items if item.num_labels]
    if not kept:
        raise DataError("error.evaluate.no_items", code="E027", path=source)
    return kept


def _digest(value: Any) -> str:
    import hashlib

    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
