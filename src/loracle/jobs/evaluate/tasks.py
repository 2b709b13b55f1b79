"""Standard benchmarks through lm-eval, for every subject, with one chat template for all.

lm-eval leaves the template out unless it is asked, a known reason why an adapter looks worse than
its base. The tokenizer and the template are those of the tuned model for every subject, so that
all are asked the same.
"""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loracle.errors import InputError, MissingExtra, RunError
from loracle.jobs.evaluate.subjects import Subject, loaded, quiet_libraries, short_memory
from loracle.jobs.train.model import load_tokenizer
from loracle.jobs.writing import writing

if TYPE_CHECKING:
    import torch

_KEPT = ("doc_id", "doc", "target", "filter", "filtered_resps")


def check_tasks(tasks: Sequence[str]) -> object:
    """lm-eval's index of tasks, after a look whether it knows these; before any model is loaded.

    A task is a name that lm-eval knows, a pattern of names, or the path of a task's YAML file.
    Raises MissingExtra without lm-eval, InputError E013 for a task that is not there.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise MissingExtra("eval", "lm-eval") from error

    manager = TaskManager()
    for task in tasks:
        is_there = Path(task).is_file() or bool(manager.match_tasks([task]))
        if not is_there:
            near = get_close_matches(task, manager.all_tasks, n=3)
            raise InputError(
                "error.evaluate.no_task", code="E013", hint="hint.evaluate.task", task=task,
                near=", ".join(near) or "-",
            )  # fmt: skip
    return manager


def run_tasks(
    subjects: Sequence[Subject],
    tasks: Sequence[str],
    folder: Path,
    *,
    limit: int | None,
    device: "torch.device",
    tokenizer_source: str,
    batch: int = 8,
) -> dict[str, dict[str, float]]:
    """Score by task (`task/metric`) for each subject id; every item goes to `folder/tasks/`.

    Raises what `check_tasks` raises, and RunError E073 where a task fails.
    """
    manager = check_tasks(tasks)
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    from loracle.jobs.train.faults import is_out_of_memory

    quiet_libraries()
    tokenizer = load_tokenizer(tokenizer_source)
    found: dict[str, dict[str, float]] = {}
    for subject in subjects:
        with (
            short_memory("error.evaluate.memory", hint="hint.evaluate.batch", batch=batch),
            loaded([subject], device) as holder,
            holder.use(subject) as model,
        ):
            try:
                results = simple_evaluate(
                    model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch),
                    tasks=list(tasks),
                    task_manager=manager,
                    limit=limit,
                    apply_chat_template=bool(tokenizer.chat_template),
                    bootstrap_iters=0,
                    random_seed=0,
                    verbosity="ERROR",
                )
            except (KeyError, ValueError, OSError, RuntimeError) as error:
                if is_out_of_memory(error):
                    raise
                raise RunError("error.evaluate.tasks", code="E073", cause=_cause(error)) from error
        with writing(folder):
            _keep_items(folder / "tasks", subject.id, results or {})
        found[subject.id] = _scores(results or {})
    return found


def _scores(results: Mapping[str, Any]) -> dict[str, float]:
    """`arc_easy/acc`: every metric but the standard errors."""
    found: dict[str, float] = {}
    for task, metrics in (results.get("results") or {}).items():
        for name, value in metrics.items():
            metric = name.partition(",")[0]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and "," in name and not metric.endswith("_stderr"):
                found[f"{task}/{metric}"] = float(value)
    return found


def _keep_items(folder: Path, subject: str, results: Mapping[str, Any]) -> None:
    """One file a subject and task, one line an item: question, target, answer and its metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, items in (results.get("samples") or {}).items():
        name = task.replace("/", "_")
        lines = [
            json.dumps(
                {key: item.get(key) for key in (*_KEPT, *item.get("metrics", ()))},
                ensure_ascii=False,
                default=str,
            )
            for item in items
        ]
        (folder / f"{subject}-{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


def _cause(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
