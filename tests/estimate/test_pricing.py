"""Prices of single operations, by hand, and of a trace on several cards."""

from dataclasses import replace

import pytest

from loracle.catalog.gpus import find_gpu
from loracle.catalog.models import find_model
from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Op, Trace
from loracle.estimate.compute import step_ops
from loracle.estimate.pricelist import PriceList
from loracle.estimate.pricing import price_trace
from loracle.estimate.rates import Rates
from loracle.estimate.speed import estimate_speed

CARD = replace(
    find_gpu("a100-80gb-sxm"), num_sms=100, bandwidth_bytes_per_s=1e12,
    gemm_flops_per_s={"bfloat16": 1e14, "float32": 1e13},
)  # fmt: skip
PLAIN = Rates(
    gemm_share=1.0, gemm_ramp_s=0.0, bandwidth_share=1.0, kernel_s=1e-6,
    issue_bytes_per_s=1e10, dequant_issue_bytes_per_s=1e10 / 3, attention_half_forward=0,
    attention_half_backward=0, attention_forward_share=0.5, attention_backward_share=0.25,
)  # fmt: skip
PRICES = PriceList(CARD, PLAIN)
SETUP = TrainingSetup(model=find_model("meta-llama/Llama-2-7b-hf", offline=True), micro_batch=4)


def op(kind: str, flops: float, num_bytes: float, shape: tuple[int, ...], **other: object) -> Op:
    fields = {"name": kind, "dtype": "bfloat16", "phase": "forward", **other}
    return Op(kind=kind, flops=flops, bytes=num_bytes, shape=shape, **fields)


def gemm(m: int, n: int, k: int, **other: object) -> Op:
    return op("gemm", 2.0 * m * n * k, 2.0 * (m * n + m * k + n * k), (m, n, k), **other)


def test_full_waves_run_at_the_cards_rate():
    # 20 x 20 tiles of 256 x 128 are 4 waves of 100 multiprocessors.
    product = gemm(5120, 2560, 4096)
    assert PRICES.seconds(product) == pytest.approx(product.flops / 1e14)


def test_a_wave_begun_is_a_wave_paid():
    # 4 tiles of 256 x 128: one wave, of which 96 multiprocessors see nothing; 64 x 64 tiles fill
    # 32 of them and are 8 times smaller but half as efficient again.
    small = gemm(512, 256, 65536)
    assert PRICES.seconds(small) == pytest.approx(64 * 64 * 1.5 * 100 * 2 * 65536 / 1e14)
    assert PRICES.seconds(small) > 3 * small.flops / 1e14


def test_fp32_products_take_the_fp32_rate():
    product = gemm(5120, 2560, 4096)
    slow = PRICES.seconds(replace(product, dtype="float32"))
    assert slow == pytest.approx(10 * PRICES.seconds(product))


def test_thin_products_of_an_adapter_stream_memory():
    thin = gemm(8192, 16, 4096)
    assert PRICES.seconds(thin) == pytest.approx(thin.bytes / 0.5e12)


def test_passes_pay_bandwidth_and_never_less_than_a_kernel():
    assert PRICES.seconds(op("elementwise", 0, 1e9, (10,))) == pytest.approx(2e-3)
    assert PRICES.seconds(op("elementwise", 0, 1e3, (10,), launches=7)) == pytest.approx(7e-6)
    assert PRICES.seconds(op("dequant", 0, 1e9, (10,))) == pytest.approx(4e-3)


def test_attention_by_direction():
    forward = op("attention", 1e12, 1.0, (1, 1, 1, 1, 1))
    assert PRICES.seconds(forward) == pytest.approx(0.02, rel=1e-3)
    backward = replace(forward, phase="backward")
    assert PRICES.seconds(backward) == pytest.approx(0.04, rel=1e-3)


def trace_of(ops: tuple[Op, ...]) -> Trace:
    return Trace(
        events=(), sizes=(), owners=(), owner_of=(), marks=(), ops=ops, num_kernels=0,
        trainable_params=0,
    )  # fmt: skip


@pytest.mark.parametrize("card", ["rtx-3090", "rtx-4090", "a100-40gb-pcie", "h200-141gb-sxm"])
def test_one_trace_serves_every_card(card):
    """A trace of the formula's own operations costs what the formula says, on any card."""
    priced = price_trace(trace_of(step_ops(SETUP)), SETUP, find_gpu(card))
    assert priced.engine == "dryrun"
    formula = estimate_speed(SETUP, find_gpu(card))
    assert priced.step_seconds.likely == pytest.approx(formula.step_seconds.likely)


def test_the_evaluation_pass_is_no_part_of_a_step():
    more = (*step_ops(SETUP), gemm(8192, 8192, 8192, phase="evaluation", count=1000))
    alone, both = (price_trace(trace_of(ops), SETUP, CARD) for ops in (step_ops(SETUP), more))
    assert alone.step_seconds == both.step_seconds


def test_a_phase_that_is_new_here_is_priced_as_python():
    trace = trace_of((*step_ops(SETUP), op("copy", 0, 1e6, (1000,), phase="batch")))
    assert price_trace(trace, SETUP, CARD).step_seconds.likely > 0
