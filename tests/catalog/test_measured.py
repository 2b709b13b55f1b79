"""Measured runs: read, written, read again, and broken in every way that a file can be."""

import json

import pytest

from loracle.catalog.measured import (
    FOLDER,
    read_runs,
    run_document,
    run_of,
    setup_of,
    shipped_runs,
    write_run,
)
from loracle.errors import InputError


def test_shipped_rows_are_read():
    runs = shipped_runs()
    assert len(runs) == 41
    first = runs[0]
    assert (first.id, first.hub_id) == ("h200a-00", "meta-llama/Llama-2-7b-hf")
    assert first.peak_allocated_bytes == 5_772_963_328
    assert first.lora_targets == "attention"
    assert [run.id for run in runs if not run.fits] == ["h200a-16", "h200t-14"]


def test_setup_of_a_run():
    setup = setup_of(shipped_runs()[0])
    assert setup.model.num_params == 6_738_415_616
    assert (setup.stack, setup.kbit_upcast, setup.seq_len) == ("hf-trainer", True, 1024)
    assert setup.lora is not None
    assert setup.lora.dtype == "float32"
    full = next(run for run in shipped_runs() if run.method == "full")
    assert setup_of(full).lora is None


def test_rows_survive_a_round_trip(tmp_path):
    path = tmp_path / "runs.jsonl"
    for run in shipped_runs():
        write_run(run, path)
    assert read_runs(path) == shipped_runs()


def test_the_document_keeps_the_schema_of_the_shipped_rows():
    raw = json.loads((FOLDER / "h200_hf_trainer.jsonl").read_text().splitlines()[0])
    written = run_document(shipped_runs()[0])
    assert {key: written[key] for key in raw} == raw


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "E010", "error.runs.empty"),
        ("\n\n", "E010", "error.runs.empty"),
        ("{", "E018", "error.runs.json"),
        ("[1]", "E018", "error.runs.row"),
        ("{}", "E018", "error.runs.row"),
        ('{"schema": "loracle.plan/1"}', "E018", "error.runs.row"),
    ],
)
def test_broken_files(tmp_path, text, code, message):
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_a_broken_row_is_named(tmp_path):
    row = run_document(shipped_runs()[0])
    row["seq_len"] = 0
    path = tmp_path / "runs.jsonl"
    path.write_text("\n" + json.dumps(row))
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert caught.value.values["line"] == 2
    assert caught.value.values["key"] == "seq_len"


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(InputError) as caught:
        read_runs(tmp_path / "nowhere.jsonl")
    assert caught.value.message == "error.missing_file"
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert caught.value.message == "error.runs.encoding"


def test_a_run_of_a_setup_gives_the_setup_back():
    for run in shipped_runs():
        setup = setup_of(run)
        again = run_of(setup, id=run.id, gpu=run.gpu)
        assert setup_of(again).with_changes(model=setup.model) == setup
        packed = setup.with_changes(packing=True)
        assert setup_of(run_of(packed, id=run.id, gpu=run.gpu)).packing
