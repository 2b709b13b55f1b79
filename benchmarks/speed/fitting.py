"""Fit the physical constants of `estimate/rates.py` to published runs, and judge them.

A constant starts from what physics or a microbenchmark says and may move away from it only as far
as is plausible (`PRIOR`). Sources weigh by the root of their rows, so that
one repository with 186 rows does not set the law alone; the loss flattens beyond 25 %, so that a
row that means something else than we read does not either.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from loracle.catalog.public_runs import PublicRun, public_runs
from loracle.estimate.compute import step_ops
from loracle.estimate.rates import RATES, Rates
from loracle.estimate.speed import speed_of_ops

# What was believed before any published run was looked at, and how far it may move (log units):
# the H200's microbenchmark, data sheets, NCCL's usual shares. Held-out fits start here, so that
# nothing of a card leaks into the constants that judge it.
PRIOR = {
    "gemm_share": (0.85, 0.03),
    "hopper_flash_share": (0.65, 0.15),
    "launch_forward_s": (48e-6, 0.2),
    "launch_backward_s": (15e-6, 0.3),
    "checkpoint_s": (0.6e-3, 0.5),
    "micro_step_s": (0.005, 0.5),
    "nvlink_share": (0.75, 0.15),
    "pcie_share": (0.75, 0.2),
    "pcie_through_host_share": (0.4, 0.2),
    "collective_s": (100e-6, 0.7),
    "exposed_link": (0.5, 0.3),
    "desktop_share": (0.7, 0.2),
}


class Fitting:
    """Published runs with their operations listed once: prices change, the work does not."""

    def __init__(self, runs: Sequence[PublicRun] | None = None, start: Rates = RATES) -> None:
        self.runs = [run for run in (runs or public_runs()) if run.left_out is None]
        self.ops = [step_ops(run.setup) for run in self.runs]
        self.measured = np.log([run.tokens_per_s for run in self.runs])
        self.start = start
        sizes = {run.source: 0 for run in self.runs}
        for run in self.runs:
            sizes[run.source] += 1
        self.weights = np.array([sizes[run.source] ** -0.5 for run in self.runs])
        self.weights /= self.weights.mean()

    def errors(self, rates: Rates, rows: np.ndarray) -> np.ndarray:
        """log(predicted / measured) tokens a second of some rows."""
        predicted = [
            speed_of_ops(
                self.ops[row], self.runs[row].setup, self.runs[row].gpu,
                node=self.runs[row].node, rates=rates, engine="formula",
            ).tokens_per_s.likely
            for row in rows
        ]  # fmt: skip
        return np.log(predicted) - self.measured[rows]

    def fit(self, rows: np.ndarray) -> Rates:
        """The constants that fit these rows and stay plausible."""
        names = list(PRIOR)
        centre, sigma = (np.array(column) for column in zip(*PRIOR.values(), strict=True))

        def rates(x: np.ndarray) -> Rates:
            values = centre * np.exp(x * sigma)
            return replace(self.start, **dict(zip(names, map(float, values), strict=True)))

        def loss(x: np.ndarray) -> np.ndarray:
            errors = self.errors(rates(x), rows)
            flat = np.arctan(errors / 0.25) * 0.25 * self.weights[rows]
            return np.concatenate([flat, 0.1 * x])

        found = least_squares(loss, np.zeros(len(names)), diff_step=0.05, max_nfev=12)
        return rates(found.x)

    def rows(self, keep: object = None) -> np.ndarray:
        """Indices of all rows, or of those for which `keep(run)` is true."""
        return np.array(
            [i for i, run in enumerate(self.runs) if keep is None or keep(run)], dtype=int
        )  # fmt: skip

    def held_out(self, group: object) -> np.ndarray:
        """Errors of every row with constants fitted to the rows of other groups only."""
        out = np.zeros(len(self.runs))
        for name in sorted({group(run) for run in self.runs}):
            inside = self.rows(lambda run, name=name: group(run) == name)
            outside = self.rows(lambda run, name=name: group(run) != name)
            out[inside] = self.errors(self.fit(outside), inside)
        return out

    def source_balanced(self, errors: np.ndarray) -> float:
        """Mean over sources of the median absolute error in each."""
        relative = np.abs(np.expm1(errors))
        sources = sorted({run.source for run in self.runs})
        return float(
            np.mean([np.median(relative[self.rows(lambda r, s=s: r.source == s)]) for s in sources])
        )


def summary(errors: np.ndarray) -> str:
    """One line: rows, median, mean, share within 25 %, bias."""
    relative = np.expm1(errors)
    size = np.abs(relative)
    return (
        f"{len(size):4d}  median {np.median(size):6.1%}  mean {size.mean():6.1%}  "
        f"within 25 % {np.mean(size <= 0.25):4.0%}  bias {np.median(relative):+6.1%}"
    )
