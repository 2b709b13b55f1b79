"""A plan as a JSON document (`loracle.plan/1`) and back: base units, never translated.

Names are those of the dataclasses in `domain/plan.py`. Two things differ: the model's shape stands
once, at the top, and each candidate also carries `seconds` and `free_bytes`, which readers want
and a `Candidate` computes. Money is a string, so that no digit is lost.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from loracle.domain.plan import SCHEMA, Plan
from loracle.errors import InputError

_COMPUTED = ("seconds", "free_bytes")


def plan_document(plan: Plan) -> dict[str, object]:
    """The plan as plain data, ready for `json.dumps`."""
    document: dict[str, Any] = _adapter().dump_python(plan, mode="json")
    model = document["setup"].pop("model")
    for row, candidate in zip(document["candidates"], plan.candidates, strict=True):
        row["setup"].pop("model")
        if row["filled"] is not None:
            row["filled"]["setup"].pop("model")
        seconds = candidate.seconds
        row["seconds"] = {"low": seconds.low, "likely": seconds.likely, "high": seconds.high}
        row["free_bytes"] = candidate.free_bytes
    return {"schema": SCHEMA, "model": model, **document}


def plan_of(document: Mapping[str, Any]) -> Plan:
    """The plan that a document holds. Raises InputError E019 for another schema or broken data."""
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if schema != SCHEMA:
        raise InputError("plan.wrong_schema", code="E019", found=str(schema), wanted=SCHEMA)
    try:
        model = document["model"]
        candidates = [_with_model(row, model) for row in document["candidates"]]
        return _adapter().validate_python(
            {
                **document,
                "setup": {**document["setup"], "model": model},
                "candidates": candidates,
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError("plan.broken", code="E019", key=place, reason=str(first["msg"])) from error
    except (KeyError, TypeError) as error:
        raise InputError("plan.broken", code="E019", key=str(error), reason="") from error


def read_plan(text: str) -> Plan:
    """The plan in a JSON text. Raises InputError E019."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            "plan.broken", code="E019", key=f"line {error.lineno}", reason=error.msg
        ) from error
    return plan_of(document)


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def _with_model(row: Mapping[str, Any], model: object) -> dict[str, Any]:
    plain = {key: value for key, value in row.items() if key not in _COMPUTED}
    plain["setup"] = {**row["setup"], "model": model}
    if row.get("filled") is not None:
        filled_setup = {**row["filled"]["setup"], "model": model}
        plain["filled"] = {**row["filled"], "setup": filled_setup}
    return plain
