"""The claims of the two source articles: ids, the figures that they state, who can check them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from loracle.catalog.folders import read_yaml

DATA = Path(__file__).parent / "data" / "claims.yaml"
CHECKERS = ("plan", "train", "evaluate", "merge", "audit", "serve")


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim. `stated` maps a figure's name (with its unit) to the low and high end claimed."""

    id: str
    by: str
    stated: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@cache
def load_claims() -> tuple[Claim, ...]:
    """All claims, in the order of the articles' topics."""
    document = read_yaml(DATA)
    assert isinstance(document, dict)
    return tuple(
        Claim(
            row["id"],
            row["by"],
            {
                name: (float(low), float(high))
                for name, (low, high) in row.get("stated", {}).items()
            },
        )
        for row in document["claims"]
    )
