"""A recording says what the machine said, and nothing about whose machine it is."""

import os
import re
import socket
from pathlib import Path

import pytest
import yaml

from loracle.catalog.fingerprints import sold_as
from loracle.errors import InputError
from loracle.jobs.audit import (
    Case,
    Options,
    Replay,
    find_recording,
    judge,
    load_recording,
    observe,
    shipped,
)
from loracle.jobs.audit.live import Live
from loracle.jobs.audit.record import Recorder, shortened
from loracle.jobs.audit.replay import merge
from loracle.jobs.audit.source import Refused


def outcome(document):
    sold = sold_as(document["sold"]) if document.get("sold") else None
    return judge(Case(seen=observe(Replay(document), Options()), sold=sold))


@pytest.mark.parametrize("path", shipped()[::4], ids=lambda path: path.stem)
def test_recording_a_replay_gives_the_same_audit(path, tmp_path):
    document = load_recording(path)
    recorder = Recorder(Replay(document))
    observe(recorder, Options())
    (tmp_path / "again.yaml").write_text(
        recorder.text(title="again", sold=document.get("sold")), "utf-8"
    )
    again = outcome(load_recording(tmp_path / "again.yaml"))
    first = outcome(document)
    assert [(c.code, c.status) for c in again.checks] == [(c.code, c.status) for c in first.checks]


def test_recording_this_machine_keeps_it_private(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/home/somebody/mps")
    with Live(quick=True, output_folder=str(tmp_path)) as live:
        recorder = Recorder(live)
        seen = observe(recorder, Options(idle_seconds=0, disk_folder=str(tmp_path)))
    (tmp_path / "this.yaml").write_text(recorder.text(title="this"), "utf-8")
    text = (tmp_path / "this.yaml").read_text()
    assert "hf_secret" not in text
    assert "somebody" not in text
    assert "CUDA_MPS_PIPE_DIRECTORY: set" in text
    assert re.search(rf"\b{re.escape(socket.gethostname())}\b", text) is None
    assert str(tmp_path) not in text
    assert os.path.expanduser("~") not in text
    assert re.search(r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", text.split("software:")[0]) is None
    replayed = observe(Replay(load_recording(tmp_path / "this.yaml")), Options())
    assert replayed.host.ram_granted_bytes == seen.host.ram_granted_bytes


def test_shipped_recordings_hold_no_uuid_or_address():
    for path in shipped():
        text = path.read_text("utf-8")
        assert re.search(r"(GPU|MIG)-[0-9a-f]{8}-", text) is None, path.name
        assert "hostname" not in text, path.name


def test_durations_are_kept_as_counts():
    kept = shortened({"durations_us": [1000.04, 1000.03, 3000.0], "watts": [1.0, 2.0]})
    assert kept["durations_us"] == {"repeated": [[1000.0, 2], [3000.0, 1]]}
    assert kept["watts"] == [1.0, 2.0]


def test_merge_lays_a_change_over_its_base():
    base = {"a": 1, "devices": [{"x": 1, "y": 2}, {"x": 3}], "list": [1, 2]}
    change = {"devices": [{"y": {"refused": "NotSupported"}}], "list": [9]}
    assert merge(base, change) == {
        "a": 1,
        "devices": [{"x": 1, "y": {"refused": "NotSupported"}}, {"x": 3}],
        "list": [9],
    }
    assert merge(base, {"devices": {"replace": [{"z": 1}]}})["devices"] == [{"z": 1}]


def test_short_series_are_written_out():
    replay = Replay(
        {"probes": {"soak": {"devices": {"0": {
            "seconds": {"every": 2, "to": 8},
            "flops_per_s": {"knots": [[0, 100], [4, 100], [8, 60]]},
            "events": {"repeated": [[4, 3], [32, 1]]},
        }}}}}
    )  # fmt: skip
    soak = replay.probe("soak")["devices"]["0"]
    assert soak == {
        "seconds": [2.0, 4.0, 6.0, 8.0],
        "flops_per_s": [100.0, 100.0, 80.0, 60],
        "events": [4, 4, 4, 32],
    }


def test_what_is_not_recorded_is_refused():
    with pytest.raises(Refused) as caught:
        Replay({"nvml": {"devices": [{}]}}).nvml("power_mw", 0)
    assert caught.value.reason == "NotSupported"


@pytest.mark.parametrize(
    "text", ["", "[1, 2", "schema: other/1\n", "schema: loracle.recorded-machine/1\nstrange: 1\n"]
)
def test_a_broken_recording_is_an_input_error(text, tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_recording(path)
    assert caught.value.code == "E071"


def test_an_unknown_recording_names_the_known_ones():
    with pytest.raises(InputError) as caught:
        find_recording("no-such-machine")
    assert caught.value.code == "E070"
    assert "healthy-rtx-4090" in str(caught.value.values["names"])


def test_every_recording_says_where_it_comes_from():
    for path in shipped():
        document = yaml.safe_load(Path(path).read_text("utf-8"))
        assert document["title"], path.name
        assert document["case"], path.name
