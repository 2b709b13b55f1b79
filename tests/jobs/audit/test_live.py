"""The live probes from end to end, on a CPU dressed as a card.

What is replaced is CUDA (events, synchronisation, the device's name), not the probes: products,
copies, patterns and the soak's threads do their work on the CPU.
"""

import contextlib
import time
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from loracle.jobs.audit import Case, Options, Replay, judge, load_recording, observe
from loracle.jobs.audit.live import Live
from loracle.jobs.audit.probes import soak, software, work
from loracle.jobs.audit.record import Recorder

MIB = 2**20


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


class Event:
    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 1000 * (other.at - self.at)


PROPERTIES = SimpleNamespace(
    name="NVIDIA GeForce RTX 4090", multi_processor_count=128, major=8, minor=9,
    total_memory=24164 * MIB, L2_cache_size=72 * MIB, pci_bus_id=1, pci_device_id=0,
    pci_domain_id=0,
)  # fmt: skip


@pytest.fixture
def dressed(monkeypatch):
    generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device=None: generator())
    replaced = {
        "Event": Event, "synchronize": lambda *_: None, "init": lambda: None,
        "is_available": lambda: True, "device_count": lambda: 1, "empty_cache": lambda: None,
        "get_device_properties": lambda _: PROPERTIES, "get_arch_list": lambda: ["sm_86"],
        "get_device_capability": lambda *_: (8, 9), "device": lambda _: contextlib.nullcontext(),
        "mem_get_info": lambda *_: (256 * MIB, 256 * MIB),
        "current_stream": lambda *_: SimpleNamespace(synchronize=lambda: None),
    }  # fmt: skip
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for module in (work, soak):
        monkeypatch.setattr(module, "_gemm_size", lambda *_: 128)
    run = soak._Worker.run

    def run_on_cpu(self):
        with OnCpu():
            run(self)

    monkeypatch.setattr(soak._Worker, "run", run_on_cpu)
    monkeypatch.setattr(software, "software", dict)
    with OnCpu():
        yield


@pytest.mark.slow
def test_every_probe_runs_and_is_recorded(dressed, tmp_path):
    with Live(quick=True, output_folder=str(tmp_path)) as live:
        recorder = Recorder(live)
        seen = observe(recorder, Options(idle_seconds=0, soak_seconds=8, disk_folder=str(tmp_path)))
    (card,) = seen.cards
    assert card.timing is not None
    assert len(card.timing.durations_us) >= 1000
    assert card.gemm is not None
    assert card.gemm.mismatches == 0
    assert len(card.gemm.repeats) >= 2
    assert card.pattern is not None
    assert card.pattern.mismatched_words == 0
    assert card.pattern.tested_bytes >= 0.9 * card.pattern.free_bytes
    assert card.soak is not None
    assert len(card.soak.seconds) == 8
    assert all(rate > 0 for rate in card.soak.flops_per_s)
    assert {"timing", "gemm", "fp32", "fp64", "bandwidth", "copies", "pattern", "soak"}.isdisjoint(
        card.refusals
    )
    (tmp_path / "dressed.yaml").write_text(recorder.text(title="dressed"), "utf-8")
    again = observe(Replay(load_recording(tmp_path / "dressed.yaml")), Options())
    found = [[(c.code, c.status) for c in judge(Case(seen=one)).checks] for one in (seen, again)]
    assert found[0] == found[1]


def test_pattern_is_stopped_by_a_cap(dressed, monkeypatch):
    """A process that may only have a third of the free memory is told from a healthy one."""
    from loracle.jobs.audit.probes import pattern

    taken = []
    empty = torch.empty

    def capped(*size, **options):
        if sum(taken) > 80 * MIB:
            raise torch.cuda.OutOfMemoryError("out of memory")
        made = empty(*size, **options)
        taken.append(made.numel() * made.element_size())
        return made

    monkeypatch.setattr(torch, "empty", capped)
    outcome = pattern.pattern(0)
    assert outcome["stopped"] == "OutOfMemory"
    assert outcome["tested_bytes"] < 0.4 * outcome["free_bytes"]
    assert outcome["mismatched_words"] == 0


@pytest.mark.parametrize(
    ("celsius", "memory", "reason"),
    [(89, None, None), (90, None, "hot"), (70, 107, "hot_memory"), (70, 106, None)],
)
def test_soak_stops_before_harm(dressed, celsius, memory, reason):
    """Slowdown at 93 and memory at 110: stop at min(90, 90) and at 107."""
    found = soak.soak(
        {0: 0}, {0: "float32"},
        lambda _: {"celsius": celsius, "memory_celsius": memory},
        list, {0: {"slowdown_celsius": 93, "memory_max_celsius": 110}}, seconds=1.2,
    )  # fmt: skip
    assert found["devices"]["0"]["stopped"] == reason


def test_soak_stops_at_a_fatal_xid_and_only_then(dressed):
    for number, reason in ((79, "xid"), (31, None)):
        told = [[number]]
        found = soak.soak(
            {0: 0}, {0: "float32"}, lambda _: {"celsius": 50},
            lambda told=told: told.pop() if told else [], {0: {}}, seconds=1.2,
        )  # fmt: skip
        assert found["devices"]["0"]["stopped"] == reason
        assert [xid for _, xid in found["xids"]] == [number]
