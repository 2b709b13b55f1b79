"""`loracle validate` as a user runs it."""

import json

import pytest

from loracle.catalog.measured import FOLDER, run_document, shipped_runs


def test_json_of_a_file(command):
    done = command("validate", str(FOLDER / "h200_trl.jsonl"), "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["schema"] == "loracle.validation/1"
    assert document["engine"] == "formula"
    assert [row["id"] for row in document["runs"]][:2] == ["h200t-00", "h200t-02"]
    memory = document["summary"]["memory"]
    assert set(memory["allocated"]) == {"n", "mean_abs_pct", "median_abs_pct", "max_abs_pct"}
    assert set(memory["fit"]) == {"n", "right", "risky", "wrong"}
    assert {"n", "mean_abs_pct", "median_abs_pct", "max_abs_pct", "within_25_pct",
            "inside_range_pct"} <= set(document["summary"]["speed"])  # fmt: skip
    assert memory["allocated"]["n"] == 5


@pytest.mark.parametrize(("language", "word"), [("en", "allocated"), ("zh-CN", "已分配")])
def test_tables(command, language, word):
    done = command("--lang", language, "validate", str(FOLDER / "h200_trl.jsonl"))
    assert done.code == 0, done.err
    assert word in done.out
    assert "h200t-12" in done.out
    markdown = command("validate", str(FOLDER / "h200_trl.jsonl"), "--format", "md")
    assert markdown.out.startswith("| run | model |")


def test_a_row_of_an_unknown_card_and_model_is_named(command, tmp_path):
    known = run_document(shipped_runs()[0])
    strange = run_document(shipped_runs()[1])
    strange["id"] = "strange"
    strange["model"]["config"] = {"model_type": "mamba2"}
    known["gpu"] = "Voodoo 5"
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(known) + "\n" + json.dumps(strange) + "\n")
    done = command("validate", str(path), "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["runs"]
    assert rows[0]["memory"]["allocated"]["error_pct"] < 1
    assert rows[0]["verdict"] is None
    assert rows[1]["skipped"]["code"] == "E033"
    assert "strange" in command("validate", str(path)).err


@pytest.mark.parametrize(
    ("content", "code"), [("", "E010"), ("{\n", "E018"), ('{"id": "x"}\n', "E018")]
)
def test_broken_files_are_one_line(command, tmp_path, content, code):
    path = tmp_path / "runs.jsonl"
    path.write_text(content)
    done = command("validate", str(path))
    assert done.code == 2
    assert f"[{code}]" in done.err
    assert "Traceback" not in done.err
    assert command("validate", str(tmp_path / "none.jsonl")).code == 2
    assert command("validate", "--engine", "crystal-ball").code == 2
