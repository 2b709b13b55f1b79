"""How a run failed, written by the process that failed and raised again by whoever follows it."""

from loracle.errors import InputError, LoracleError, Problem, RunError
from loracle.jobs.runs import RunFolder, append_event, write_status
from loracle.jobs.train.world import is_main


def report_failure(run: RunFolder, error: LoracleError) -> None:
    """The failure as an event and as the run's last status."""
    if not is_main():
        return
    document = error_document(error)
    problems = getattr(error, "problems", ())
    append_event(run, "failed", **document, problems=[error_document(one) for one in problems])
    write_status(run, state="failed", reason=error.message, error=document)


def error_document(error: LoracleError) -> dict[str, object]:
    """An error as plain data: code, message id, hints, values."""
    return {
        "code": error.code,
        "message": error.message,
        "hints": list(error.hints),
        "values": dict(error.values),
    }


def failure_of(run: RunFolder) -> LoracleError | None:
    """The error that ended a run, as it was raised there; None where it did not fail."""
    status = run.status()
    if run.state() == "lost":
        return RunError(
            "error.train.lost", code="E061", hints=("hint.train.resume", "hint.train.log"),
            name=run.name, path=str(run.path), log=str(run.log),
        )  # fmt: skip
    if status["state"] != "failed":
        return None
    last = next((one for one in reversed(list(run.events("failed")))), None)
    if last is None:
        return None
    problems = last.get("problems") or ()
    if not problems:
        return _error_of(RunError, last)
    found = _error_of(InputError, last)
    assert isinstance(found, InputError)
    found.problems = tuple(_error_of(Problem, one) for one in problems)  # type: ignore[union-attr]
    return found


def _error_of(kind: type[LoracleError], document: dict[str, object]) -> LoracleError:
    error = kind(
        str(document["message"]),
        code=str(document["code"]),
        hints=tuple(document.get("hints") or ()),  # type: ignore[arg-type]
    )
    error.values = dict(document.get("values") or {})  # type: ignore[call-overload]
    return error
