"""Probes that need no card: disk, host, the pattern's arithmetic, the trials on a CPU."""

import subprocess
import sys

import pytest
import torch

from loracle.jobs.audit.probes import host, pattern, software, storage
from loracle.jobs.audit.source import Refused


def test_disk_leaves_nothing_behind(tmp_path):
    rates = storage.disk(str(tmp_path), 64 * 2**20)
    assert rates["write_bytes_per_s"] > 1e6
    assert rates["read_bytes_per_s"] > 1e6
    assert list(tmp_path.iterdir()) == []


def test_disk_refuses_where_there_is_no_room(tmp_path):
    with pytest.raises(Refused):
        storage.disk(str(tmp_path), 1024)


def test_host_is_granted_no_more_than_it_has():
    facts = host.host(host.CpuTimes())
    assert 0 < facts["cores_granted"] <= facts["cores_listed"]
    assert 0 < facts["ram_granted_bytes"] <= facts["ram_listed_bytes"]
    assert 0 <= facts["cpu_steal_share"] <= 1


def test_disks_tell_roles_and_no_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not" / "there" / "yet"))
    found = host.disks(str(tmp_path))
    assert [one["role"] for one in found] == ["output", "cache", "temporary"]
    assert found[1]["same_as"] == "output"
    assert str(tmp_path) not in str(found)


def test_cgroup_quota_counts(monkeypatch):
    texts = {"/sys/fs/cgroup/cpu.max": "150000 100000", "/sys/fs/cgroup/memory.max": "8589934592"}
    real = host._first
    monkeypatch.setattr(host, "_first", lambda *paths: texts.get(paths[0]) or real(*paths))
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(64)))
    assert host.cores_granted() == 1.5
    assert host.ram_granted() == 8589934592


def test_uuids_in_files_are_hashed(tmp_path):
    path = tmp_path / "information"
    path.write_text("Model: X\nGPU UUID: GPU-12345678-1234-1234-1234-123456789abc\n")
    text = host.read_text(str(path))
    assert "12345678-" not in text
    assert text.startswith("Model: X\nGPU UUID: ")


def test_a_script_is_not_a_binary(tmp_path):
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho RTX 4090\n")
    assert host._kind(str(script)) == "script"
    assert host._kind(sys.executable) == "elf"


def words(chunks):
    for at, chunk in enumerate(chunks):
        torch.arange(at * chunk.numel(), (at + 1) * chunk.numel(), out=chunk)
        chunk.mul_(pattern._ODD).bitwise_not_()


def test_pattern_counts_what_was_forgotten():
    chunks = [torch.empty(1000, dtype=torch.int64) for _ in range(4)]
    check, differs = torch.empty(1000, dtype=torch.int64), torch.empty(1000, dtype=torch.bool)
    words(chunks)
    assert pattern._verify(chunks, check, differs) == 0
    chunks[2][17] ^= 1 << 40
    chunks[3][0] = 0
    assert pattern._verify(chunks, check, differs) == 2


def test_pattern_catches_memory_that_wraps():
    """A total with half of it behind it: the last chunks overwrite the first."""
    real = [torch.empty(1000, dtype=torch.int64) for _ in range(2)]
    chunks = [*real, *real]
    check, differs = torch.empty(1000, dtype=torch.int64), torch.empty(1000, dtype=torch.bool)
    words(chunks)
    assert pattern._verify(chunks, check, differs) == 2000


def test_nf4_is_about_nine_percent_off():
    outcome = software.try_bitsandbytes("cpu")
    assert 0.05 < outcome["relative_error"] < 0.15


def test_a_crash_in_a_trial_is_an_answer(monkeypatch):
    real = subprocess.run

    def run(command, **options):
        names = command[3:]
        body = (
            "import json, os\n"
            f"for name in {names!r}:\n"
            "    if name == 'bitsandbytes': os.abort()\n"
            "    print(json.dumps({'trial': name, 'outcome': {'runs': True}}), flush=True)\n"
        )
        return real([sys.executable, "-c", body], **options)

    monkeypatch.setattr(software.subprocess, "run", run)
    outcome = software.software()
    assert outcome["flash_sdpa"] == {"runs": True}
    assert outcome["flash_attn"] == {"runs": True}
    assert outcome["bitsandbytes"]["error"]
    assert outcome["bitsandbytes"]["runs"] is False
