"""The articles' claims held against our own engines: reproduced, contradicted, or out of reach."""

from loracle.planner.claims.check import Checked, check_claims
from loracle.planner.claims.figures import Bench, Figure

__all__ = ["Bench", "Checked", "Figure", "check_claims"]
