"""Fit the constants to all published runs, and the ranges to the errors of held-out cards.

    python benchmarks/speed/calibrate.py          print constants and ranges
    python benchmarks/speed/calibrate.py --write  also write src/loracle/estimate/spread.py

Ranges are quantiles of log(measured / predicted step time) with each card's rows predicted by
constants that never saw them; sources weigh by the root of their rows, as in the fit.
"""

import sys
from pathlib import Path

import numpy as np
from fitting import PRIOR, Fitting, summary

from loracle.estimate.speed import speed_of_ops
from loracle.estimate.spread import kind_of

TARGET = Path(__file__).parents[2] / "src/loracle/estimate/spread.py"
INSIDE = 0.8
# Hosts of the published runs are too alike to say how much CPUs differ; runs repeated on one H200
# vary by a quarter where launching sets the pace (`step_spread` of the measured runs).
LEAST = {"launch": 0.25, "compute": 0.03, "cards": 0.03}


def quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    order = np.argsort(values)
    position = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(share, position / weights.sum(), values[order]))


def main():
    fitting = Fitting()
    everything = fitting.rows()
    rates = fitting.fit(everything)
    print("constants fitted to all rows:", summary(fitting.errors(rates, everything)))
    for name, (believed, _) in PRIOR.items():
        shipped = getattr(fitting.start, name)
        print(
            f"    {name}: {getattr(rates, name):.3g}  (prior {believed:.3g}, ships {shipped:.3g})"
        )
    errors = fitting.held_out(lambda run: run.card)
    kinds = np.array([_kind(fitting, row) for row in everything])
    print("held out:", summary(errors))
    found = {}
    for kind in ("compute", "launch", "cards"):
        rows = everything[kinds == kind]
        low = quantile(errors[rows], fitting.weights[rows], (1 - INSIDE) / 2)
        high = quantile(errors[rows], fitting.weights[rows], (1 + INSIDE) / 2)
        low, high = min(low, np.log1p(-LEAST[kind])), max(high, np.log1p(LEAST[kind]))
        inside = np.mean((errors[rows] >= low) & (errors[rows] <= high))
        found[kind] = (1 - np.exp(low), np.exp(high) - 1)
        print(f"  {kind:8s} {len(rows):4d} rows  step time -{found[kind][0]:.1%} "
              f"+{found[kind][1]:.1%}  holds {inside:.0%} of them")  # fmt: skip
    if "--write" in sys.argv:
        text = TARGET.read_text("utf-8")
        for kind, (below, above) in found.items():
            start = text.index(f'    "{kind}": (')
            end = text.index("\n", start)
            text = text[:start] + f'    "{kind}": ({below:.3f}, {above:.3f}),' + text[end:]
        TARGET.write_text(text, "utf-8")


def _kind(fitting: Fitting, row: int) -> str:
    run = fitting.runs[row]
    estimate = speed_of_ops(fitting.ops[row], run.setup, run.gpu, node=run.node, engine="formula")
    return kind_of(run.setup, estimate.terms)


if __name__ == "__main__":
    main()
