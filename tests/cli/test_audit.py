"""`loracle audit` on recorded machines: exit codes, screens in two languages, JSON."""

import json

import pytest
from typer.testing import CliRunner

from loracle.cli.app import app

runner = CliRunner()


def audit(*flags, language="en"):
    return runner.invoke(app, ["audit", *flags], env={"LORACLE_LANG": language, "COLUMNS": "120"})


@pytest.mark.parametrize(
    ("name", "code"),
    [("healthy-rtx-4090", 0), ("shm-64mb", 1), ("time-sliced", 2), ("no-gpu", 3)],
)
def test_exit_codes(name, code):
    assert audit("--replay", name).exit_code == code


def test_screen_says_what_was_bought_found_and_meant():
    screen = audit("--replay", "rtx-4090-d-sold-as-rtx-4090").stdout
    assert "FAIL" in screen
    assert "114" in screen
    assert "error[LRA-ID-SM-COUNT]: 89 % of the multiprocessors that were sold" in screen
    assert "Give it back" in screen
    assert "What this cannot prove" in screen


def test_chinese_screen():
    screen = audit("--replay", "time-sliced", language="zh-CN").stdout
    assert "请退机或更换" in screen
    assert "错误[LRA-SHARE-TIMING]" in screen


def test_sold_on_the_command_line_wins():
    assert audit("--replay", "healthy-rtx-4090").exit_code == 0
    assert audit("--replay", "healthy-rtx-4090", "--sold", "A100 40G").exit_code == 2


def test_no_card_is_one_line_and_the_host_is_still_looked_at():
    lines = audit("--replay", "no-gpu").stdout.splitlines()
    assert lines[0].startswith("No NVIDIA card is visible here")
    assert any("disk space" in line for line in lines)


def test_quiet_is_one_line():
    assert audit("--replay", "time-sliced", "-q").stdout.count("\n") == 1


def test_markdown():
    text = audit("--replay", "time-sliced", "--format", "md").stdout
    assert "| CHECK |" in text.replace("|  |", "|", 1)
    assert "| FAIL |" in text


def test_json_is_in_base_units_and_never_translated():
    found = audit("--replay", "pcie-x1-riser", "--json", language="zh-CN")
    document = json.loads(found.stdout)
    assert document["schema"] == "loracle.audit/1"
    assert (document["outcome"], document["exit_code"]) == ("fail", 2)
    (copies,) = [c for c in document["checks"] if c["code"] == "LRA-LINK-COPY"]
    assert copies["status"] == "fail"
    assert copies["found"]["values"]["up_bytes_per_s"] == 1.97e8
    assert copies["means"]["text"] == "14 GB of weights take 71 s to reach the card"
    assert copies["repeat"]
    assert copies["source"]


def test_every_judged_check_says_how_to_repeat_it():
    document = json.loads(audit("--replay", "healthy-a100-80gb-sxm", "--json").stdout)
    for check in document["checks"]:
        if check["status"] in ("pass", "warn", "fail"):
            assert check["repeat"], check["code"]
            assert check["expected"], check["code"]


def test_report_is_written(tmp_path):
    path = tmp_path / "audit.html"
    audit("--replay", "thermal-throttle", "--report", str(path))
    assert path.read_text("utf-8").startswith("<!doctype html>")


def test_plan_is_scored_again_with_the_measured_speed():
    found = audit("Qwen/Qwen3-8B", "--replay", "thermal-throttle", "--json")
    scored = json.loads(found.stdout)["rescore"]
    assert scored["gpu_id"] == "rtx-3090"
    assert 0.6 < scored["speed_share"] < 0.9
    assert scored["measured_seconds"] > scored["planned_seconds"]
    assert float(scored["measured_cost"]) >= float(scored["planned_cost"])


def test_a_healthy_card_confirms_the_plan():
    found = audit("Qwen/Qwen3-8B", "--replay", "healthy-rtx-3090", "--json")
    assert json.loads(found.stdout)["rescore"]["speed_share"] == pytest.approx(1, abs=0.03)


def test_recordings_are_listed():
    assert "thermal-throttle" in audit("--recordings").stdout


def test_unknown_offer_and_unknown_recording_are_errors_of_the_tree():
    from loracle.errors import CatalogError, InputError

    assert isinstance(audit("--replay", "no-such").exception, InputError)
    found = audit("--replay", "healthy-t4", "--sold", "banana")
    assert isinstance(found.exception, CatalogError)


@pytest.mark.parametrize(
    "flags",
    [
        ("--sold", "banana"),
        ("--report", "/no/such/folder/a.html"),
        ("--record", "/no/such/folder/a.yaml"),
        ("--soak", "600"),
        ("--format", "xml"),
        ("missing.yaml",),
        ("missing.json",),
    ],
)
def test_a_wrong_question_is_told_before_minutes_are_spent(flags, monkeypatch):
    from loracle.errors import LoracleError
    from loracle.jobs.audit.live import Live

    def never(*_, **__):
        raise AssertionError("the machine was asked")

    monkeypatch.setattr(Live, "__init__", never)
    assert isinstance(audit(*flags).exception, LoracleError)
