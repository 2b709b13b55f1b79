"""`loracle recipe` and `loracle claims` from the outside."""

import json

import jsonschema
import pytest
import yaml


def test_schema_accepts_a_recipe_and_refuses_a_typo(command):
    schema = json.loads(command("recipe", "schema").out)
    jsonschema.validate({"model": "a", "lora": {"rank": 8}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": "a", "lora": {"rnak": 8}}, schema)


def test_show_says_where_each_value_came_from(command, tmp_path):
    (tmp_path / "r.yaml").write_text("model: a\nlora:\n  rank: 4\n", "utf-8")
    answer = command("recipe", "show", "r.yaml", "--set", "lora.alpha=8", "--json")
    origins = {row["key"]: (row["value"], row["origin"]) for row in json.loads(answer.out)["keys"]}
    assert origins["lora.rank"] == (4, "file")
    assert origins["lora.alpha"] == (8, "flag")
    assert origins["lora.dropout"] == (0, "default")


def test_show_prints_lines(command, tmp_path):
    (tmp_path / "r.yaml").write_text("model: a\nlora:\n  rank: 4\n", "utf-8")
    answer = command("recipe", "show", "r.yaml")
    (row,) = [line for line in answer.out.splitlines() if line.startswith("lora.rank")]
    assert row.split() == ["lora.rank", "4", "r.yaml:3"]


def test_what_plan_writes_recipe_show_reads(command, tmp_path):
    command("plan", "Qwen/Qwen3-0.6B", "--tokens", "1M", "--engine", "formula", "-o", "out.yaml")
    assert yaml.safe_load((tmp_path / "out.yaml").read_text("utf-8"))["model"] == "Qwen/Qwen3-0.6B"
    assert command("recipe", "show", "out.yaml").code == 0


def test_claims_in_json(command):
    document = json.loads(command("claims", "--json").out)
    assert document["schema"] == "loracle.claims/1"
    assert sum(document["counts"].values()) == len(document["claims"]) == 54
    by_id = {one["id"]: one for one in document["claims"]}
    assert by_id["A-P3"]["status"] == "reproduced"
    assert by_id["A-M9"]["status"] == "contradicted"


def test_one_claim_in_chinese(command):
    answer = command("claims", "a-p3", "--lang", "zh-CN")
    assert "可重现" in answer.out
    assert "2,140" in answer.out


def test_an_unknown_claim(command):
    answer = command("claims", "A-X9")
    assert (answer.code, answer.out) == (2, "")
    assert "A-X9" in answer.err
