"""How fast a data set is read and counted: 100,000 alpaca rows, 64 MB.

python benchmarks/data/reading.py [--tokenizer FOLDER]
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

from loracle.catalog.datasets import count_data, find_counter, read_dataset

WORDS = ("alpha", "beta", "gamma", "delta", "语言", "模型", "def", "return", "x", "=", "3", "quick")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=Path)
    options = parser.parse_args()
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "rows.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for _ in range(100_000):
                row = {
                    "instruction": " ".join(draw.choices(WORDS, k=40)),
                    "output": " ".join(draw.choices(WORDS, k=80)),
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        start = time.perf_counter()
        data = read_dataset(path)
        read = time.perf_counter()
        counted = count_data(data, find_counter(options.tokenizer), seq_len=2048)
        end = time.perf_counter()
    print(f"{data.report.num_bytes / 1e6:.0f} MB, {len(data.samples):,} rows")
    print(f"read and checked {read - start:.1f} s, counted {end - read:.1f} s")
    print(f"{counted.facts.tokens.likely:,.0f} tokens by {counted.facts.counted_by}, "
          f"{counted.counted_rows:,} rows one by one")  # fmt: skip


if __name__ == "__main__":
    main()
