"""A candidate together with what it was made of: the planner's working unit."""

from dataclasses import dataclass

from loracle.domain.plan import Candidate
from loracle.planner.fit import Choice
from loracle.planner.place import Place
from loracle.planner.work import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One place, the settings chosen for it, and the candidate that the plan shows."""

    place: Place
    choice: Choice
    work: Workload
    candidate: Candidate
