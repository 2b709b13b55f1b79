"""How long the tool itself takes: help and an offline plan against importing typer and rich.

    python benchmarks/startup.py [--rounds 9] [--json]

Section 7 of the plan issue asks for help within 3 times and a plan within 6 times the time of
`python -c "import typer, rich"`, and for 1,000 formula estimates a second on one core. The best of
several rounds counts: the rest is what else the machine was doing. Exit 1 where a bound is missed.
"""

import argparse
import json
import os
import subprocess
import sys
import time

HELP_BOUND, PLAN_BOUND, ESTIMATES_BOUND = 3.0, 6.0, 1000
PLAN = ["-m", "loracle", "plan", "Qwen/Qwen3-8B", "--tokens", "2000000", "--engine", "formula"]


def best_of(arguments, rounds):
    """Seconds of the fastest of several runs of the interpreter, at least 1 thrown away."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True,
                       env=environment)  # fmt: skip
        times.append(time.perf_counter() - started)
    return min(times[1:])


def estimates_per_second(count=400):
    """Memory and speed estimates of different settings, each counted as one."""
    from loracle.catalog.gpus import find_gpu
    from loracle.catalog.models import find_model
    from loracle.domain.recipe import Recipe
    from loracle.estimate.memory import estimate_memory
    from loracle.estimate.speed import estimate_speed
    from loracle.planner.resolve import resolve

    gpu = find_gpu("rtx-4090")
    base = resolve(Recipe(model="Qwen/Qwen3-8B"), find_model("Qwen/Qwen3-8B", offline=True))
    setups = [
        base.with_changes(seq_len=256 + 64 * (index % 50), micro_batch=1 + index // 50)
        for index in range(count)
    ]
    figures = {}
    for name, law in (("memory", estimate_memory), ("speed", estimate_speed)):
        started = time.perf_counter()
        for setup in setups:
            law(setup, gpu)
        figures[name] = count / (time.perf_counter() - started)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bare = best_of(["-c", "import typer, rich"], options.rounds)
    shown = best_of(["-m", "loracle", "--help"], options.rounds)
    planned = best_of(PLAN, options.rounds)
    figures = {
        "typer_and_rich_s": bare, "help_s": shown, "plan_s": planned,
        "help_ratio": shown / bare, "plan_ratio": planned / bare,
        "estimates_per_s": estimates_per_second(),
    }  # fmt: skip
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        print(f"import typer, rich   {bare * 1000:6.0f} ms")
        print(f"loracle --help       {shown * 1000:6.0f} ms  {shown / bare:4.1f} x  (<= 3)")
        print(f"loracle plan         {planned * 1000:6.0f} ms  {planned / bare:4.1f} x  (<= 6)")
        for name, rate in figures["estimates_per_s"].items():
            print(f"{name + ' estimates':<20} {rate:6,.0f} a second  (>= 1,000)")
    fast = shown / bare <= HELP_BOUND and planned / bare <= PLAN_BOUND
    fast = fast and min(figures["estimates_per_s"].values()) >= ESTIMATES_BOUND
    return 0 if fast else 1


if __name__ == "__main__":
    sys.exit(main())
