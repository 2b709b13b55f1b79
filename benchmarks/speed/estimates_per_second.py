"""How many formula estimates a second one core makes: memory and speed of one setup on one card."""

import time

from loracle.catalog.gpus import load_gpus
from loracle.catalog.models import find_model
from loracle.domain.setup import TrainingSetup
from loracle.estimate.memory import estimate_memory
from loracle.estimate.speed import estimate_speed

SECONDS = 2.0


def rate(*laws):
    setup = TrainingSetup(model=find_model("meta-llama/Llama-3.1-8B", offline=True))
    gpus, done, start = load_gpus(), 0, time.process_time()
    while time.process_time() - start < SECONDS:
        gpu = gpus[done % len(gpus)]
        for law in laws:
            law(setup.with_changes(micro_batch=1 + done % 8), gpu)
        done += 1
    return done / (time.process_time() - start)


if __name__ == "__main__":
    print(f"speed alone       {rate(estimate_speed):8,.0f} a second")
    print(f"memory alone      {rate(estimate_memory):8,.0f} a second")
    print(f"memory and speed  {rate(estimate_memory, estimate_speed):8,.0f} a second")
