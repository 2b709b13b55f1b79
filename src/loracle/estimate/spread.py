"""How wide the speed ranges are, by what limits a step.

Written by `python benchmarks/speed/calibrate.py --write`: shares below and above the likely step
time that hold 80 % of published runs whose card the constants never saw.
"""

from loracle.domain.estimate import Term
from loracle.domain.setup import TrainingSetup

_SPREAD = {
    "compute": (0.130, 0.297),
    "launch": (0.250, 0.250),
    "cards": (0.131, 0.338),
}
_WIDER = 1.6  # for a stack that we do not know, or a card whose matrix rate nobody measured
_LAUNCH_SHARE = 0.15


def spread_of(
    setup: TrainingSetup, terms: tuple[Term, ...], *, certain: bool
) -> tuple[float, float]:
    """(share below, share above) of the likely step time that 80 % of runs stay within."""
    below, above = _SPREAD[kind_of(setup, terms)]
    return (below, above) if certain else (min(0.6, _WIDER * below), _WIDER * above)


def kind_of(setup: TrainingSetup, terms: tuple[Term, ...]) -> str:
    """`cards` (several), `launch` (the CPU sets the pace) or `compute`."""
    if setup.num_gpus > 1:
        return "cards"
    total = sum(term.value for term in terms)
    waits = sum(term.value for term in terms if term.id == "speed.launch")
    return "launch" if waits > _LAUNCH_SHARE * total else "compute"
