"""Write the accuracy table of the README from predictions and measured runs.

    python benchmarks/accuracy_table.py            print it
    python benchmarks/accuracy_table.py --write    put it between the marks in both READMEs

Two groups of rows are kept apart. *Known while building*: the runs that the engines were debugged
against, predicted anew by today's code. *Predicted first*: runs whose predictions were committed
before the card was asked (`benchmarks/lab/predictions-*.jsonl`), scored as they were written, and
beside them what today's code says, which has seen them since.
"""

import json
import statistics
import sys
from pathlib import Path

from loracle.planner.validation import STEADY

ROOT = Path(__file__).resolve().parent.parent
LAB = ROOT / "benchmarks" / "lab"
QUANTITIES = {
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "device": "device_used_bytes",
}
# reference figures that others published or that were read with their tools on the same runs
PEERS = ROOT / "benchmarks" / "peers.json"
WORDS = {
    "en": {
        "head": "| rows | engine | runs | allocated: mean, worst | reserved: mean, worst "
        "| device: mean, worst | fit verdicts right | tokens/s: median, worst (steady runs) |",
        "known": "known while building",
        "first": "predicted first ({batch})",
        "since": "the same rows, today's code",
        "peer_head": "| tool | what it predicts | runs | mean | worst | whose runs |",
    },
    "zh-CN": {
        "head": "| 数据行 | 引擎 | 次数 | 已分配: 平均, 最差 | 已保留: 平均, 最差 "
        "| 整卡: 平均, 最差 | 能否放下判断正确 | token/秒: 中位, 最差 (平稳的运行) |",
        "known": "开发时已知",
        "first": "先预测后测量 ({batch})",
        "since": "同一批, 当前代码",
        "peer_head": "| 工具 | 预测量 | 次数 | 平均 | 最差 | 谁的数据 |",
    },
}


def main() -> None:
    """Print the tables, or put them between the marks of the READMEs."""
    groups = [*_known(), *_lab()]
    for language, name in (("en", "README.md"), ("zh-CN", "README.zh-CN.md")):
        table = _table(groups, language) + "\n\n" + _peers(language)
        if "--write" in sys.argv:
            _put(ROOT / name, table)
        else:
            print(f"{table}\n")


def _known() -> list[tuple]:
    """Shipped runs, predicted by both engines as they are now."""
    from loracle.catalog.measured import shipped_runs

    return [(("known", {}), engine, _today(shipped_runs(), engine)) for engine in ENGINES]


def _lab() -> list[tuple]:
    """Each batch as it was predicted before measuring, and as today's code predicts it."""
    from loracle.catalog.measured import read_runs

    groups = []
    for predictions in sorted(LAB.glob("predictions-*.jsonl")):
        batch = predictions.stem.removeprefix("predictions-")
        rows = LAB / f"rows-{batch}.jsonl"
        if not rows.exists():
            continue  # a later prediction of a known batch: benchmarks/lab/README.md has its score
        written = {row["id"]: row for row in _lines(predictions)}
        measured = [row for row in _lines(rows) if row["id"] in written and row["fits"] is not None]
        pairs = [(written[row["id"]], row) for row in measured]
        groups.append((("first", {"batch": batch}), "dryrun", _score_written(pairs)))
        if all("formula" in one for one in written.values()):  # written down from list d on
            formula = [({"fits": None} | one["formula"], row) for one, row in pairs]
            groups.append((("first", {"batch": batch}), "formula", _score_written(formula)))
        runs = tuple(run for run in read_runs(str(rows)) if run.id in written)
        groups += [(("since", {}), engine, _today(runs, engine)) for engine in ENGINES]
    return groups


def _score_written(pairs: list[tuple[dict, dict]]) -> dict:
    errors = {
        name: [
            abs(predicted[key] / row["measured"][key] - 1) * 100
            for predicted, row in pairs
            if row["fits"] and predicted.get(key) and row["measured"].get(key)
        ]
        for name, key in QUANTITIES.items()
    }
    judged = [(one["fits"], row["fits"]) for one, row in pairs if one["fits"] is not None]
    right = sum(said == was for said, was in judged)
    speeds = [
        abs(predicted["tokens_per_s"] / row["measured"]["tokens_per_s"] - 1) * 100
        for predicted, row in pairs
        if predicted.get("tokens_per_s") and row["measured"].get("tokens_per_s")
        and row["measured"]["step_spread"] < STEADY
    ]  # fmt: skip
    return {
        "n": len(pairs),
        **{name: (statistics.mean(one), max(one)) for name, one in errors.items()},
        "fit": f"{right} / {len(judged)}" if judged else "-",
        "speed": f"{statistics.median(speeds):.1f} %, {max(speeds):.1f} % ({len(speeds)})"
        if speeds
        else "-",
    }


def _today(runs: tuple, engine: str) -> dict:
    from loracle.catalog.gpus import find_gpu
    from loracle.catalog.measured import setup_of
    from loracle.planner.validation import compare, summary

    figures = summary(compare(runs, setup_of, find_gpu, ENGINES[engine]()))
    memory, speed = figures["memory"], figures["speed"]
    fit = memory["fit"]
    risky = f" ({fit['risky']} risky)" if fit["risky"] else ""
    return {
        "n": len(runs),
        **{one: (memory[one]["mean_abs_pct"], memory[one]["max_abs_pct"]) for one in QUANTITIES},
        "fit": f"{fit['right']} / {fit['n']}{risky}",
        "speed": f"{speed['median_abs_pct']:.1f} %, {speed['max_abs_pct']:.1f} % ({speed['n']})"
        if speed["n"]
        else "-",
    }


def _formula():
    from loracle.planner.engines import formula_engine

    return formula_engine


def _dry_run():
    from loracle.planner.engines import dry_run_engine

    return dry_run_engine


ENGINES = {"formula": _formula, "dryrun": _dry_run}


def _table(groups: list[tuple], language: str) -> str:
    words = WORDS[language]
    lines = [words["head"], "|---|---|--:|--:|--:|--:|--:|--:|"]
    for (name, values), engine, score in groups:
        cells = [words[name].format(**values), engine, str(score["n"])]
        cells += [f"{score[one][0]:.2f} %, {score[one][1]:.2f} %" for one in QUANTITIES]
        lines.append("| " + " | ".join([*cells, score["fit"], score["speed"]]) + " |")
    return "\n".join(lines)


def _peers(language: str) -> str:
    lines = [WORDS[language]["peer_head"], "|---|---|--:|--:|--:|---|"]
    for row in json.loads(PEERS.read_text("utf-8"))["rows"]:
        cells = (row["tool"], row["quantity"][language], row["runs"], row["mean"], row["worst"])
        lines.append("| " + " | ".join([*map(str, cells), row["whose"][language]]) + " |")
    return "\n".join(lines)


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def _put(path: Path, table: str) -> None:
    begin, end = (
        "<!-- accuracy: generated by benchmarks/accuracy_table.py -->",
        "<!-- /accuracy -->",
    )
    text = path.read_text("utf-8")
    before, rest = text.split(begin)
    _, after = rest.split(end)
    path.write_text(f"{before}{begin}\n{table}\n{end}{after}", "utf-8")


if __name__ == "__main__":
    main()
