"""Copies against a real S3 server (moto's, in a thread of this process)."""

import shutil

import pytest

from loracle.errors import InputError, MissingExtra, RunError
from loracle.jobs.train import checkpoints
from loracle.jobs.train.mirror import fetch_run
from loracle.jobs.train.options import Options
from loracle.jobs.train.process import train_run


@pytest.fixture(scope="module")
def server():
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    yield f"http://127.0.0.1:{server._server.port}"
    server.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    import boto3
    import fsspec
    import s3fs

    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": server,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3")
    client.create_bucket(Bucket="team")
    yield fsspec.filesystem("s3")
    stored = client.list_objects_v2(Bucket="team").get("Contents", [])
    for one in stored:
        client.delete_object(Bucket="team", Key=one["Key"])
    client.delete_bucket(Bucket="team")
    s3fs.S3FileSystem.clear_instance_cache()


def test_checkpoints_and_results_arrive_and_old_ones_go(bucket, make_run):
    run = make_run(training={"steps": 6}, options=Options(mirror="s3://team/runs"))
    train_run(run, resume=False)
    remote = {path.removeprefix("team/runs/run/") for path in bucket.find("team/runs/run")}
    local = {
        path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()
    }
    assert local - remote <= {"train.log"}
    assert not {name for name in remote if name.startswith("checkpoints/step-000002")}
    for name in ("adapter/adapter_model.safetensors", "checkpoints/step-000006/optimizer.pt"):
        assert bucket.cat_file(f"team/runs/run/{name}") == (run.path / name).read_bytes()
    assert "mirror_failed" not in [event["event"] for event in run.events()]


def test_a_lost_machine_is_replaced_and_the_losses_are_the_same(bucket, make_run, losses, tmp_path):
    lora = {"rank": 4, "targets": "attention", "dropout": 0.1}
    whole = make_run("whole", training={"steps": 6}, lora=lora)
    train_run(whole, resume=False)
    options = Options(mirror="s3://team/runs")
    run = make_run("lost", training={"steps": 6}, lora=lora, options=options)
    train_run(run, resume=False)
    # As it was when the machine went: step 4 had arrived, step 6 only in part, nothing is here.
    bucket.rm_file("team/runs/lost/checkpoints/step-000006/manifest.json")
    bucket.rm("team/runs/lost/adapter", recursive=True)
    shutil.rmtree(run.path)
    fetched = fetch_run("s3://team/runs/lost", tmp_path / "elsewhere")
    assert [one.step for one in checkpoints.list_checkpoints(fetched.checkpoints)] == [4]
    assert train_run(fetched, resume=True).state == "finished"
    assert losses(fetched) == losses(whole)
    with pytest.raises(RunError):
        fetch_run("s3://team/runs/lost", tmp_path / "elsewhere")


def test_a_place_that_cannot_be_written_is_told_before_the_first_step(bucket, make_run):
    run = make_run(options=Options(mirror="s3://nobody/runs"))
    with pytest.raises(InputError) as raised:
        train_run(run, resume=False)
    assert raised.value.message == "error.train.mirror"
    assert not any(run.events("step"))


def test_an_unknown_kind_of_url_is_told(make_run):
    with pytest.raises((InputError, MissingExtra)):
        train_run(make_run(options=Options(mirror="oss2x://team/runs")), resume=False)


def test_a_copy_that_fails_stops_nothing_and_holds_back_the_end_command(
    make_run, tmp_path, monkeypatch
):
    """A volume that vanishes during the run: the run finishes, the machine is not switched off."""
    remote = tmp_path / "volume"
    remote.mkdir()
    monkeypatch.setattr("loracle.jobs.train.mirror.ATTEMPTS", 1)
    proof = tmp_path / "stopped"
    run = make_run(options=Options(mirror=f"file://{remote}", then=f"touch {proof}"))
    original = checkpoints.finish

    def vanish(*args, **kwargs):
        shutil.rmtree(remote, ignore_errors=True)
        remote.write_text("a file where the folder was")
        return original(*args, **kwargs)

    monkeypatch.setattr(checkpoints, "finish", vanish)
    assert train_run(run, resume=False).state == "finished"
    events = [event["event"] for event in run.events()]
    assert "mirror_failed" in events
    assert events[-1] == "then_skipped"
    assert not proof.exists()


def test_the_end_command_runs_after_the_copies(make_run, tmp_path):
    import time

    proof = tmp_path / "stopped"
    remote = tmp_path / "copies"
    options = Options(mirror=f"file://{remote}", then=f"ls {remote}/run/adapter > {proof}")
    train_run(make_run(options=options), resume=False)
    until = time.monotonic() + 10
    while not (proof.exists() and proof.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    assert "adapter_model.safetensors" in proof.read_text()


def test_a_checkpoint_that_is_outdated_while_it_is_copied_is_no_failure(make_run, tmp_path):
    """Newer ones may come faster than a slow link takes them."""
    from loracle.jobs.train.mirror import Mirror

    run = make_run(training={"steps": 2})
    train_run(run, resume=False)
    folder = checkpoints.checkpoint_path(run.checkpoints, 2)
    told = []
    mirror = Mirror(f"file://{tmp_path}/copies", run, lambda kind, **values: told.append(kind))
    put, taken = mirror._put, []

    def slow(path, remote):
        put(path, remote)
        taken.append(path)
        if len(taken) == 2:
            shutil.rmtree(folder)

    mirror._put = slow
    mirror.copy_checkpoint(folder, [])
    mirror.finish()
    assert told == ["mirrored"]
    assert not (
        tmp_path / "copies" / "run" / "checkpoints" / "step-000002" / "manifest.json"
    ).exists()
