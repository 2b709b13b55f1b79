"""How a training process ends."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the process ended: finished, stopped (with a reason), or adapted (start me again)."""

    state: str
    reason: str = ""
    step: int = 0
