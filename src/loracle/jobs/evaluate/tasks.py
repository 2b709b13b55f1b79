"""Standard benchmarks through lm-eval, for every subject, with its own chat template applied.

lm-eval leaves the template out unless it is asked, a known reason why an adapter looks worse than
its base.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loracle.errors import MissingExtra, RunError
from loracle.jobs.evaluate.subjects import Subject, loaded, quiet_libraries

if TYPE_CHECKING:
    import torch


def run_tasks(
    subjects: Sequence[Subject],
    tasks: Sequence[str],
    *,
    limit: int | None,
    device: "torch.device",
    batch: int = 8,
) -> dict[str, dict[str, float]]:
    """Score by task (`task/metric`) for each subject id.

    Raises MissingExtra without lm-eval, RunError E073 where a task fails or is unknown.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise MissingExtra("eval", "lm-eval") from error
    from transformers import AutoTokenizer

    quiet_libraries()
    found: dict[str, dict[str, float]] = {}
    for subject in subjects:
        tokenizer = AutoTokenizer.from_pretrained(subject.adapter or subject.weights)
        with loaded([subject], device) as holder, holder.use(subject) as model:
            try:
                results = simple_evaluate(
                    model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch),
                    tasks=[one.strip() for one in tasks],
                    limit=limit,
                    apply_chat_template=bool(tokenizer.chat_template),
                    bootstrap_iters=0,
                    random_seed=0,
                    verbosity="ERROR",
                )
            except (KeyError, ValueError, OSError) as error:
                raise RunError("error.evaluate.tasks", code="E073", cause=str(error)) from error
        found[subject.id] = _scores(results or {})
    return found


def _scores(results: dict[str, object]) -> dict[str, float]:
    """`arc_easy/acc`: every metric but the standard errors."""
    found: dict[str, float] = {}
    tables = results.get("results")
    for task, metrics in tables.items() if isinstance(tables, dict) else ():
        for name, value in metrics.items():
            metric = name.partition(",")[0]
            if isinstance(value, float) and not metric.endswith("_stderr"):
                found[f"{task}/{metric}"] = value
    return found
