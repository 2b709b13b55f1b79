import json
import os
import subprocess
import sys

import pytest

from loracle.errors import InputError, MachineError, RunError
from loracle.jobs import runs


def a_run(folder, name="one"):
    run = runs.new_run(folder, name, "org/model", "lora")
    runs.write_status(run, state="new", step=0)
    return run


def test_a_name_is_made_of_model_method_and_day(tmp_path):
    run = runs.new_run(tmp_path, None, "Qwen/Qwen3-8B", "qlora")
    assert run.name.startswith("qwen3-8b-qlora-")
    assert run.checkpoints.is_dir()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(MachineError) as caught:
        runs.new_run(tmp_path / "file", "one", "m", "lora")
    assert caught.value.code == "E054"


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "a b", "x" * 101])
def test_a_name_that_is_no_folder_is_refused(tmp_path, name):
    with pytest.raises(InputError):
        runs.new_run(tmp_path, name, "m", "lora")


def test_a_run_is_never_overwritten(tmp_path):
    a_run(tmp_path)
    with pytest.raises(RunError) as raised:
        a_run(tmp_path)
    assert raised.value.code == "E062"


def test_a_run_is_found_by_path_name_and_end_of_name(tmp_path):
    run = a_run(tmp_path, "qwen-1130a3")
    a_run(tmp_path, "qwen-1130b4")
    assert runs.open_run(str(run.path), tmp_path) == run
    assert runs.open_run("qwen-1130a3", tmp_path).path == run.path
    assert runs.open_run("a3", tmp_path).path == run.path
    with pytest.raises(InputError, match="no_run"):
        runs.open_run("zz", tmp_path)
    a_run(tmp_path, "other-1130a3")
    with pytest.raises(InputError, match="many_runs"):
        runs.open_run("a3", tmp_path)


def test_a_torn_line_is_passed_over_and_never_swallows_the_next(tmp_path):
    run = a_run(tmp_path)
    runs.append_event(run, "step", step=1)
    with run.events_file.open("ab") as file:
        file.write(b'{"event": "step", "ste')  # a kill in the middle of a write
    assert [event["step"] for event in run.events("step")] == [1]
    runs.append_event(run, "step", step=2)
    assert [event["step"] for event in run.events("step")] == [1, 2]


def test_status_is_replaced_whole(tmp_path):
    run = a_run(tmp_path)
    runs.write_status(run, state="running", step=3)
    runs.write_status(run, step=4)
    status = json.loads(run.status_file.read_text())
    assert (status["state"], status["step"]) == ("running", 4)
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []


def test_a_run_whose_process_is_gone_is_lost(tmp_path):
    run = a_run(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    began = runs.process_start(child.pid)
    runs.write_status(
        run, state="running", pid=child.pid, host=os.uname().nodename, process_start=began
    )
    assert run.state() == "running"
    child.kill()
    child.wait()
    assert run.state() == "lost"


def test_another_process_with_the_same_number_is_not_the_run(tmp_path):
    run = a_run(tmp_path)
    runs.write_status(
        run, state="running", pid=os.getpid(), host=os.uname().nodename,
        process_start=runs.process_start(os.getpid()) - 1,
    )  # fmt: skip
    assert run.state() == "lost"


def test_a_broken_status_names_the_file(tmp_path):
    run = a_run(tmp_path)
    run.status_file.write_text("{")
    with pytest.raises(RunError) as raised:
        run.status()
    assert raised.value.code == "E061"
    assert raised.value.values["path"] == str(run.status_file)
