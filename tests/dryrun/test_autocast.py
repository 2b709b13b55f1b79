"""CUDA's cast rules on meta tensors."""

import pytest
import torch

from loracle.dryrun.autocast import CudaAutocast, cuda_autocast_state
from loracle.dryrun.recorder import Recorder

BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture
def on_cuda():
    """The modes of a dry run, with autocast to bf16 on."""
    recorder, mode = Recorder(), CudaAutocast({})
    with cuda_autocast_state(mode), recorder, mode, torch.autocast("cuda", dtype=BF16):
        yield recorder


def meta(*shape, dtype=BF16, **kwargs):
    return torch.empty(shape, dtype=dtype, device="meta", **kwargs)


def test_products_run_in_the_low_precision(on_cuda):
    a, b = meta(4, 4, dtype=FP32), meta(4, 4, dtype=FP32)
    assert (a @ b).dtype == BF16
    assert torch.nn.functional.linear(a, b).dtype == BF16
    assert torch.bmm(a[None], b[None]).dtype == BF16


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: torch.nn.functional.softmax(x, dim=-1),
        lambda x: x.pow(2),
        lambda x: x**2,
        torch.exp,
        lambda x: x.sum(-1),
        lambda x: torch.nn.functional.layer_norm(x, (8,)),
        lambda x: torch.nn.functional.cross_entropy(x, torch.empty(4, dtype=torch.int64,
                                                                   device="meta")),
    ],
)  # fmt: skip
def test_sums_and_losses_run_in_fp32(on_cuda, call):
    assert call(meta(4, 8)).dtype == FP32


@pytest.mark.parametrize("call", [torch.nn.functional.silu, torch.relu, lambda x: x + x])
def test_the_rest_keeps_its_dtype(on_cuda, call):
    assert call(meta(4, 8)).dtype == BF16
    assert call(meta(4, 8, dtype=FP32)).dtype == FP32


def test_a_trained_weight_is_cast_once_until_autocast_ends():
    recorder, mode = Recorder(), CudaAutocast({})
    weight = meta(8, 8, dtype=FP32, requires_grad=True)
    frozen = meta(8, 8, dtype=FP32)
    with cuda_autocast_state(mode), recorder, mode:
        with torch.autocast("cuda", dtype=BF16):
            x = meta(2, 8)
            for _ in range(3):
                torch.nn.functional.linear(x, weight)
                torch.nn.functional.linear(x, frozen)
            casts = [s for s, o in zip(recorder.sizes, recorder.owners, strict=True)
                     if o[2] == "_to_copy"]  # fmt: skip
            assert casts == [128] * 4  # one of the trained weight, three of the frozen one
            alive = sum(1 if e >= 0 else -1 for s in recorder.segments for e in s.events)
        after = sum(1 if e >= 0 else -1 for s in recorder.segments for e in s.events)
        assert after == alive - 1


def test_a_nested_context_turns_it_off(on_cuda):
    a = meta(4, 4, dtype=FP32)
    with torch.autocast("meta", enabled=False):
        assert (a @ a).dtype == FP32
    assert (a @ a).dtype == BF16


def test_nothing_is_left_behind():
    before = (torch.autocast.__init__, torch.is_autocast_enabled, torch.clear_autocast_cache)
    with cuda_autocast_state(CudaAutocast({})):
        assert torch.is_autocast_enabled is not before[1]
    after = (torch.autocast.__init__, torch.is_autocast_enabled, torch.clear_autocast_cache)
    assert before == after
