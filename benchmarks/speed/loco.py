"""Judge the speed law on published runs, each with constants that never saw its card.

    python benchmarks/speed/loco.py [--family]

Leave-one-card-out by the card's printed name; `--family` leaves out every A100 (or H100, ...) at
once. Prints errors by card and by source, the shipped constants' own errors for comparison, and
what was left out and why.
"""

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
from fitting import PRIOR, Fitting, summary

from loracle.catalog.public_runs import public_runs
from loracle.estimate.rates import RATES


def main():
    family = "--family" in sys.argv
    fitting = Fitting()
    errors = fitting.held_out(lambda run: run.card.split("-")[0] if family else run.card)
    print("held out by card" + (" family" if family else ""))
    for name, key in (("card", lambda run: run.card), ("source", lambda run: run.source)):
        print(f"\nby {name}")
        for value in sorted({key(run) for run in fitting.runs}):
            rows = fitting.rows(lambda run, value=value, key=key: key(run) == value)
            print(f"  {value[-60:]:60s} {summary(errors[rows])}")
    print(f"\n  {'all, card held out':60s} {summary(errors)}")
    believed = replace(RATES, **{name: value for name, (value, _) in PRIOR.items()})
    unfitted = fitting.errors(believed, fitting.rows())
    print(f"  {'all, priors alone (nothing fitted)':60s} {summary(unfitted)}")
    shipped = fitting.errors(RATES, np.arange(len(fitting.runs)))
    print(f"  {'all, shipped constants':60s} {summary(shipped)}")
    print(f"  source-balanced mean of medians: {fitting.source_balanced(errors):.1%} held out, "
          f"{fitting.source_balanced(shipped):.1%} shipped")  # fmt: skip
    left_out = Counter(run.left_out for run in public_runs() if run.left_out)
    print(f"\nleft out: {left_out.total()} of {len(public_runs())}")
    for reason, count in left_out.items():
        print(f"  {count:3d}  {reason}")


if __name__ == "__main__":
    main()
