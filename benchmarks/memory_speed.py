"""Estimates of the memory formula a second, on one core.

    python benchmarks/memory_speed.py

`search`: what a plan does, one model at many lengths, batches and knobs. `cold`: a model that was
never asked for before, which pays once for its layers and for the holes that loading leaves.
"""

import time
from collections.abc import Iterator

from loracle.catalog.measured import setup_of, shipped_runs
from loracle.domain.setup import TrainingSetup
from loracle.estimate.memory import estimate_memory


def search(setup: TrainingSetup) -> Iterator[TrainingSetup]:
    """The settings that a plan walks through for one model."""
    for checkpointed in (True, False):
        for seq_len in (512, 1024, 2048, 4096):
            for micro_batch in (1, 2, 4, 8, 16, 32):
                for optimizer in ("adamw_torch", "paged_adamw_8bit"):
                    yield setup.with_changes(
                        gradient_checkpointing=checkpointed, seq_len=seq_len,
                        micro_batch=micro_batch, optimizer=optimizer,
                    )  # fmt: skip


def main() -> None:
    """Time both and print."""
    runs = [run for run in shipped_runs() if run.lora_rank]
    start = time.perf_counter()
    for run in runs:
        estimate_memory(setup_of(run))
    cold = len(runs) / (time.perf_counter() - start)
    setups = [one for run in runs[:4] for one in search(setup_of(run))]
    start = time.perf_counter()
    for setup in setups:
        estimate_memory(setup)
    warm = len(setups) / (time.perf_counter() - start)
    print(f"search {warm:,.0f} estimates/s over {len(setups)}; cold {cold:,.0f} models/s")


if __name__ == "__main__":
    main()
