"""The commands around a run: start detached, attach, stop, resume, list; and what they refuse."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def loracle(*arguments, cwd, **env):
    return subprocess.run(
        [sys.executable, "-m", "loracle", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1",
                          "LORACLE_LANG": "en", "XDG_CACHE_HOME": str(cwd / "cache")} | env,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "tiny_model", ROOT / "benchmarks" / "train" / "tiny_model.py"
    )
    tiny = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    folder = tmp_path_factory.mktemp("cli")
    tiny.make_model(folder / "model")
    tiny.write_rows(folder / "train.jsonl", tiny.make_rows(40))
    recipe = {
        "model": "model", "method": "lora", "data": {"train": "train.jsonl"},
        "lora": {"rank": 4, "targets": "attention"},
        "training": {"seq_len": 96, "steps": 5000, "effective_batch": 2, "micro_batch": 1,
                     "optimizer": "adamw_torch", "gradient_checkpointing": False},
        "save": {"every_steps": 100},
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.1)
    return False


def status(folder, name):
    path = folder / "runs" / name / "status.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def test_a_detached_run_outlives_its_starter_and_stops_goes_on_and_is_listed(folder):
    started = loracle("train", "recipe.yaml", "--name", "long", "--detach", "--json", cwd=folder)
    assert started.returncode == 0, started.stderr
    assert json.loads(started.stdout)["name"] == "long"
    assert wait_for(lambda: status(folder, "long").get("step", 0) > 2)
    pid = status(folder, "long")["pid"]
    assert os.getsid(pid) == pid  # a session of its own: no terminal can hang it up

    attached = subprocess.Popen(
        [sys.executable, "-m", "loracle", "attach", "long"], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "LORACLE_LANG": "en"},
    )  # fmt: skip
    assert "no plan" in attached.stdout.readline()
    attached.send_signal(signal.SIGINT)
    _, errors = attached.communicate(timeout=60)
    assert attached.returncode == 130
    assert "goes on" in errors
    assert Path(f"/proc/{pid}").exists()

    again = loracle("train", "--resume", "long", cwd=folder)
    assert again.returncode == 2
    assert "E062" in again.stderr

    stopped = loracle("stop", "long", "--wait", "120", cwd=folder)
    assert stopped.returncode == 0
    step = status(folder, "long")["step"]
    assert (folder / "runs" / "long" / "checkpoints" / f"step-{step:06d}").is_dir()
    listed = json.loads(loracle("runs", "--json", cwd=folder).stdout)["runs"]
    assert [(one["name"], one["state"]) for one in listed] == [("long", "stopped")]

    changed = loracle(
        "train", "recipe.yaml", "--resume", "long", "--set", "lora.rank=8", cwd=folder
    )
    assert changed.returncode == 2
    assert "lora.rank: 4 -> 8" in changed.stderr
    resumed = loracle(
        "train", "recipe.yaml", "--resume", "long", "--set", f"training.steps={step + 2}",
        "--allow-changed", cwd=folder,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
    assert f"goes on from step {step}" in resumed.stdout
    assert f"step={step + 2}/{step + 2}" in resumed.stdout
    assert "finished" in resumed.stdout.splitlines()[-1]


def test_a_failure_in_the_process_is_told_where_it_was_started(folder):
    failed = loracle(
        "train", "recipe.yaml", "--name", "short", "--set", "training.seq_len=16", cwd=folder
    )
    assert failed.returncode == 1
    assert "error[E027]" in failed.stderr
    assert "hint:" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_foreground_shows_our_lines_in_order_and_keeps_the_libraries_in_the_log(folder):
    done = loracle(
        "train", "recipe.yaml", "--name", "here", "--foreground", "--set", "training.steps=4",
        "--set", "save.every_steps=2", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = [line.split(" ", 1)[1] for line in done.stdout.splitlines()]
    steps = [line.split(" ")[0] for line in told if line.startswith("step")]
    assert steps == ["step=1/4", "step=2/4", "step", "step=4/4", "step"]
    assert told[-2] == "step 4 saved"
    assert told[-1].startswith("finished at step 4")
    assert "Loading weights" in (folder / "runs" / "here" / "train.log").read_text()


def test_a_failure_in_the_foreground_is_told_there(folder):
    failed = loracle(
        "train", "recipe.yaml", "--name", "here-short", "--foreground",
        "--set", "training.seq_len=16", cwd=folder,
    )  # fmt: skip
    assert failed.returncode == 2
    assert "error[E027]" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "E013"),
        (("missing.yaml",), 2, "E013"),
        (("recipe.yaml", "--on-oom", "pray"), 2, "E011"),
        (("recipe.yaml", "--budget", "lots"), 2, "E011"),
        (("recipe.yaml", "--budget", "5XYZ"), 2, "E013"),
        (("recipe.yaml", "--budget", "5XYZ"), 2, "--price"),
        (("recipe.yaml", "--budget", "5XYZ", "--price", "2CNY/h"), 2, "E017"),
        (("recipe.yaml", "--budget", "5EUR", "--price", "2CNY/h"), 2, "loracle offers rate EUR"),
        (("recipe.yaml", "--price", "5CNY"), 2, "E011"),
        (("recipe.yaml", "--set", "lora.rnak=8"), 2, "lora.rank"),
        (("recipe.yaml", "--name", "../x"), 2, "E013"),
        (("--resume", "nobody"), 2, "E013"),
        (("recipe.yaml", "--then", "poweroff"), 2, "--mirror"),
        (("recipe.yaml", "--set", "stack=trl"), 2, "stack=loracle"),
        (("recipe.yaml", "--report-to", "tensorflow"), 2, "tensorboard"),
    ],
)
def test_what_is_typed_wrong_is_told_at_once(folder, arguments, code, text):
    before = sorted(folder.glob("runs/*"))
    done = loracle("train", *arguments, cwd=folder)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error[") == 1
    assert sorted(folder.glob("runs/*")) == before


def _recipe_with(folder, **changes):
    recipe = json.loads((folder / "recipe.yaml").read_text())
    recipe["save"] = {"folder": "nothing-made"}
    recipe |= changes
    (folder / "wrong.yaml").write_text(json.dumps(recipe))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"data": {"train": "gone.jsonl"}}, "E013"),
        ({"data": {"train": "train.jsonl", "eval": "gone.jsonl"}}, "E013"),
        ({"data": {"train": "*.nothing"}}, "E013"),
        ({"data": {"train": "empty.jsonl"}}, "E024"),
        ({"data": {"train": "blank.jsonl"}}, "E024"),
        ({"data": {"train": "empty.json"}}, "E024"),
        ({"model": "./gone"}, "E032"),
        ({"model": "nobody/has-this"}, "E036"),
        ({"model": "Qwen/Qwen3-8B"}, "E036"),  # known, and neither cached nor to be asked for
        ({"model": "hollow"}, "E013"),
    ],
)
def test_missing_inputs_are_told_before_there_is_a_run(folder, changes, code):
    (folder / "empty.jsonl").touch()
    (folder / "blank.jsonl").write_text("\n\n")
    (folder / "empty.json").write_text("[]")
    (folder / "hollow").mkdir(exist_ok=True)
    (folder / "hollow" / "config.json").write_bytes((folder / "model/config.json").read_bytes())
    _recipe_with(folder, **changes)
    done = loracle(
        "train", "wrong.yaml", cwd=folder, HF_HUB_OFFLINE="1", HF_HOME=str(folder / "hf")
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"error[{code}]" in done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "nothing-made").exists()


def test_a_price_by_the_month_is_spread_over_its_hours():
    from decimal import Decimal

    from loracle.cli.train import _price

    found = _price("¥1825/month")
    assert (found.amount, found.currency) == (Decimal("2.5"), "CNY")


def test_the_price_comes_from_the_plan_where_none_is_given(tmp_path):
    from decimal import Decimal

    from loracle.domain.recipe import Recipe
    from loracle.jobs.train.launch import price_of_plan
    from loracle.planner.gather import gather
    from loracle.planner.plan import make_plan
    from loracle.planner.plan_json import plan_document

    recipe = Recipe.model_validate(
        {"model": "Qwen/Qwen3-8B", "data": {"tokens": 10**6}, "rent": {"gpus": ["rtx-3090"]}}
    )
    plan = make_plan(recipe, gather(recipe, today="2026-11-30", offline=True))
    cost = plan.candidates[plan.best].cost
    found = price_of_plan(json.dumps(plan_document(plan), default=str))
    hours = {"hour": 1, "month": 730}[cost.period]
    assert found.amount == cost.unit_price.amount / Decimal(hours)
    assert found.currency == cost.unit_price.currency


def test_a_foreground_run_goes_on_when_nobody_reads_its_lines(folder):
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-m", "loracle", "train", "recipe.yaml", "--name", "unread",
         "--foreground", "--set", "training.steps=2"],
        cwd=folder, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=240, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "LORACLE_LANG": "en"},
    )  # fmt: skip
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")
    assert status(folder, "unread")["state"] == "finished"
