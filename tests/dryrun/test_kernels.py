"""CUDA's behaviour where meta tensors would show another."""

import pytest
import torch

from loracle.dryrun.attention import Attention
from loracle.dryrun.kernels import grouped_mm, staging_bytes
from loracle.dryrun.recorder import Recorder
from loracle.dryrun.trace import trace

BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("inputs", "outputs", "inner", "size"),
    [
        (1024 * 4096, 4096, False, 33_554_432),  # read from the allocator's log of an H200
        (8192 * 4096, 8192, True, 0),  # a mean over 4,096: one block a row
        (16 * 4096, 4096, False, 0),
    ],
)
def test_long_sums_are_staged(inputs, outputs, inner, size):
    assert staging_bytes(inputs, outputs, inner=inner) == size


def heads(count, dim=128, dtype=BF16):
    return torch.empty(1, count, 64, dim, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("capability", "q", "k", "bias", "grouped", "kernel"),
    [
        ((9, 0), heads(8), heads(8), None, False, "cudnn"),
        ((9, 0), heads(8), heads(2), None, True, "cudnn"),
        ((9, 0), heads(8, 256), heads(8, 256), None, False, "cudnn"),
        ((9, 0), heads(8), heads(1), None, False, "math"),  # Falcon's broadcast key head
        ((8, 6), heads(8), heads(2), None, True, "flash"),
        ((8, 6), heads(8), heads(8), torch.empty(1, 1, 64, 64, device="meta"), False, "efficient"),
        ((8, 0), heads(8, 512), heads(8, 512), None, False, "efficient"),
        ((7, 5), heads(8, dtype=torch.float16), heads(8, dtype=torch.float16), None, False,
         "efficient"),
        ((7, 5), heads(8), heads(8), None, False, "math"),
    ],
)  # fmt: skip
def test_the_kernel_that_cuda_would_choose(capability, q, k, bias, grouped, kernel):
    attention = Attention(capability, Recorder())
    assert attention.choose(q, k, k, bias, 0.0, grouped) == kernel


def test_fused_attention_holds_no_score_matrix(make_setup):
    """4 heads x 512 x 512 scores in 2 bytes are 2 MiB a row; eager attention makes them."""
    long = {"seq_len": 512, "micro_batch": 1, "gradient_checkpointing": False}
    scores = 4 * 512 * 512
    fused = trace(make_setup("llama", **long))
    eager = trace(make_setup("llama", attention="eager", **long))
    assert scores * 4 in {eager.sizes[n] for n in range(len(eager.sizes))}
    assert not {scores * 2, scores * 4} & {fused.sizes[n] for n in range(len(fused.sizes))}


def test_dropout_keeps_a_bool_mask(make_setup):
    """One byte an element of each adapter's input: 2 x 32 x 64."""
    plain = trace(make_setup("llama", gradient_checkpointing=False, layers=3))
    dropped = trace(make_setup("llama", gradient_checkpointing=False, layers=3,
                               lora={"dropout": 0.1}))  # fmt: skip
    ops = [dropped.owners[i].op for i in dropped.owner_of]
    sizes = {size for size, op in zip(dropped.sizes, ops, strict=True) if op == "native_dropout"}
    assert 2 * 32 * 64 in sizes
    assert not any(o.op == "native_dropout" for o in plain.owners)


def test_the_fused_head_never_holds_the_logits(make_setup):
    """2 x 32 tokens x 512 logits in fp32 are 128 KiB."""
    whole = trace(make_setup("llama", layers=3, seq_len=512, micro_batch=8))
    tiled = trace(make_setup("llama", layers=3, seq_len=512, micro_batch=8, stack="trl"))
    logits = 512 * 8 * 512 * 4
    assert logits in set(whole.sizes)
    assert logits not in set(tiled.sizes)


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_experts_are_multiplied_in_any_dtype(dtype):
    rows = torch.empty(96, 64, dtype=dtype, device="meta")
    experts = torch.empty(4, 32, 64, dtype=dtype, device="meta").transpose(1, 2)
    ends = torch.empty(4, dtype=torch.int32, device="meta")
    call = torch.ops.aten._grouped_mm.default
    out = grouped_mm(Recorder("layers"), call, rows, experts, ends)
    assert (out.shape, out.dtype) == ((96, 32), dtype)
    grads = grouped_mm(Recorder("layers"), call, rows.t(), torch.empty_like(out), ends)
    assert (grads.shape, grads.dtype) == ((4, 64, 32), dtype)


def test_a_mixture_in_fp32_takes_the_same_operations(make_setup):
    def grouped(**changes):
        made = trace(make_setup("qwen3_moe", layers=4, **changes))
        return [op for op in made.ops if op.name == "_grouped_mm"]

    narrow = grouped(method="qlora", quant="nf4-double")
    wide = grouped(method="qlora", quant="nf4-double", kbit_upcast=True)
    assert {op.dtype for op in narrow} == {"bfloat16"}
    assert {op.dtype for op in wide} == {"float32"}
    assert sum(op.flops * op.count for op in narrow) == sum(op.flops * op.count for op in wide) > 0
