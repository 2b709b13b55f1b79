"""The written-out optimizer steps against the real optimizers on meta tensors."""

import pytest
import torch

from loracle.dryrun.layers import Log
from loracle.dryrun.optimizers import Optimizer, Trainable, clip_grad_norm
from loracle.dryrun.recorder import Recorder

SHAPES = [(64, 32), (128,), (300, 300), (64, 64)]


class Sizes(Log):
    """A log, and what was alive at its fullest."""

    def __init__(self):
        super().__init__([], [], [], [], None)

    @property
    def peak(self):
        now = most = 0
        for event in self.events:
            now += self.sizes[event] if event >= 0 else -self.sizes[~event]
            most = max(most, now)
        return most

    @property
    def kept(self):
        return sum(self.sizes[e] if e >= 0 else -self.sizes[~e] for e in self.events)


def trainables(itemsize=4):
    return [
        Trainable(f"p{i}", torch.Size(shape).numel(), itemsize, decays=True)
        for i, shape in enumerate(SHAPES)
    ]


def test_foreach_adamw_is_torchs_own():
    """Births and deaths of torch.optim.AdamW(foreach=True), step by step."""
    params = [torch.nn.Parameter(torch.empty(s, device="meta")) for s in SHAPES]
    real = torch.optim.AdamW(params, foreach=True, weight_decay=0.0)
    recorder = Recorder()
    with recorder:
        for p in params:
            p.grad = torch.empty_like(p)
        for step in range(2):
            recorder.enter(f"s{step}", None, "optimizer")
            real.step()
            recorder.enter(f"after {step}", None, "optimizer")
    log = Sizes()
    ours = Optimizer("adamw_torch", trainables())
    for step in range(2):
        at = len(log.events)
        ours.step(log)
        segment = next(s for s in recorder.segments if s.stage == f"s{step}")
        real_born = [recorder.sizes[e] for e in segment.events if e >= 0]
        our_born = [log.sizes[e] for e in log.events[at:] if e >= 0]
        assert our_born == real_born
        real_dead = [recorder.sizes[~e] for e in segment.events if e < 0]
        assert [log.sizes[~e] for e in log.events[at:] if e < 0] == real_dead


def test_fused_adamw_keeps_two_states_and_a_counter():
    log = Sizes()
    optimizer = Optimizer("adamw_torch_fused", trainables())
    optimizer.step(log)
    numel = sum(p.numel for p in trainables())
    assert log.kept == log.peak == 2 * 4 * numel + 4 * len(SHAPES)
    before = len(log.events)
    optimizer.step(log)
    assert len(log.events) == before


@pytest.mark.parametrize("paged", [False, True])
def test_eight_bit_states(paged):
    """2048 and 128 elements stay fp32; 90,000 and 4,096 take a byte a state and a scale in 256."""
    log = Sizes()
    optimizer = Optimizer("paged_adamw_8bit" if paged else "adamw_8bit", trainables())
    optimizer.step(log)
    wide = 2 * 4 * (2048 + 128)
    eight = 2 * (90_000 + 4096) + 2 * 4 * (352 + 16)
    assert log.kept == wide + eight + 2 * 1024
    assert optimizer.managed_bytes == 0  # all under 100,000 elements


def test_large_states_are_paged():
    log = Sizes()
    big = [Trainable("w", 1_000_000, 2, decays=True)]
    optimizer = Optimizer("paged_adamw_32bit", big)
    optimizer.step(log)
    assert (optimizer.managed_bytes, log.kept) == (8_000_000, 0)
    optimizer = Optimizer("paged_adamw_8bit", big)
    optimizer.step(log)
    assert (optimizer.managed_bytes, log.kept) == (2_000_000, 2048 + 2 * 4 * 3907)


def test_embeddings_keep_32_bit_states():
    """transformers registers them so with bitsandbytes' optimizers."""
    log = Sizes()
    embedding = [Trainable("e", 1_000_000, 2, decays=True, is_embedding=True)]
    Optimizer("adamw_8bit", embedding).step(log)
    assert log.kept == 8_000_000


def test_clipping_leaves_nothing():
    log = Sizes()
    clip_grad_norm(log, trainables())
    assert log.kept == 0
    assert 0 < log.peak < 4096


def test_data_parallel_buckets():
    """A first bucket of 1 MiB, then of 25 MiB, filled from the last parameter."""
    from loracle.dryrun.trace import ddp_buckets

    mib = 1 << 20
    assert ddp_buckets([20 * mib, 10 * mib, 10 * mib, 2 * mib]) == [2 * mib, 40 * mib]
    assert ddp_buckets([mib // 4] * 3) == [3 * mib // 4]
    assert sum(ddp_buckets([7 * mib] * 9)) == 63 * mib
