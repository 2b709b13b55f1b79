"""How wide the speed ranges are: shares below and above the likely step time."""

from loracle.domain.setup import TrainingSetup


def spread_of(engine: str, setup: TrainingSetup, *, launch_bound: bool) -> tuple[float, float]:
    """(share below, share above) of the likely step time that 80 % of runs stay within."""
    del engine, launch_bound
    return (0.2, 0.3) if setup.num_gpus > 1 else (0.15, 0.2)
