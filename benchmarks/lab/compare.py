"""Predictions beside measured rows: relative errors of allocated, reserved and device memory.

python benchmarks/lab/compare.py predictions.jsonl rows.jsonl...
"""

import json
import statistics
import sys
from pathlib import Path

COUNTERS = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")


def lines(path: str) -> list[dict]:
    """Rows of a JSON Lines file."""
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]


def main() -> None:
    """One line a run, then mean and worst."""
    measured = {row["id"]: row for path in sys.argv[2:] for row in lines(path)}
    errors: dict[str, list[float]] = {name: [] for name in COUNTERS}
    right = judged = 0
    for made in lines(sys.argv[1]):
        row = measured.get(made["id"])
        if row is None or row["fits"] is None:
            print(made["id"], "not measured")
            continue
        judged += 1
        right += made["fits"] == row["fits"]
        cells = []
        for name in COUNTERS:
            real = row["measured"].get(name)
            if not real or not row["fits"]:
                continue
            error = made[name] / real - 1
            errors[name].append(abs(error))
            cells.append(f"{name.removesuffix('_bytes')} {100 * error:+.2f} %")
        print(made["id"], row["model"]["hub_id"], row["method"], row["stack"],
              "verdict", "right" if made["fits"] == row["fits"] else "WRONG", *cells)  # fmt: skip
    for name, found in errors.items():
        if found:
            print(f"{name}: mean {100 * statistics.mean(found):.3f} %, worst "
                  f"{100 * max(found):.3f} % of {len(found)}")  # fmt: skip
    print(f"verdicts: {right} of {judged} right")


if __name__ == "__main__":
    main()
