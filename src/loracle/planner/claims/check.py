"""Each claim with our figures beside it, and the verdict that follows from the two.

A claim is reproduced where every figure of ours, with its range, touches what is claimed;
contradicted where one does not. Nothing here knows what the verdict should be.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loracle.catalog.claims import Claim
from loracle.planner.claims.figures import Bench, Figure
from loracle.planner.claims.memory import MEMORY
from loracle.planner.claims.prices import PRICES
from loracle.planner.claims.rules import RULES
from loracle.planner.claims.speed import SPEED

Check = Callable[[Bench], Mapping[str, Figure]]
CHECKS: Mapping[str, Check] = {**MEMORY, **SPEED, **PRICES, **RULES}
ROUNDING = 0.005  # a figure is stated to about three digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure of a claim: what is claimed, what we find, and whether they touch."""

    name: str
    stated: tuple[float, float]
    figure: Figure

    @property
    def agrees(self) -> bool:
        """Whether our range touches the claimed one."""
        low, high = self.stated
        ours = self.figure.ours
        return ours.low <= high * (1 + ROUNDING) and ours.high >= low * (1 - ROUNDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A claim with its verdict: `reproduced`, `contradicted` or `out_of_reach`.

    `by` names the command that can check what a plan cannot.
    """

    id: str
    status: str
    by: str
    compared: tuple[Compared, ...] = ()


def check_claims(claims: Sequence[Claim], bench: Bench) -> Iterator[Checked]:
    """Check each claim in turn."""
    for claim in claims:
        check = CHECKS.get(claim.id)
        if check is None:
            yield Checked(id=claim.id, status="out_of_reach", by=claim.by)
            continue
        figures = check(bench)
        compared = tuple(
            Compared(name=name, stated=stated, figure=figures[name])
            for name, stated in claim.stated.items()
        )
        agrees = all(one.agrees for one in compared)
        status = "reproduced" if agrees else "contradicted"
        yield Checked(id=claim.id, status=status, by=claim.by, compared=compared)
