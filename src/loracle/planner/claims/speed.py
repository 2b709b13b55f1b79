"""Claims about speed, and about the data sheets that they lean on."""

from collections.abc import Callable, Mapping

from loracle.domain.estimate import Range
from loracle.planner.claims.figures import Bench, Figure, between_cards, ratio
from loracle.units import GB, TB

USUAL = {"seq_len": 2048, "micro_batch": 4, "grad_accum": 4}
NO_RECOMPUTE = {"micro_batch": 2, "grad_accum": 8, "gradient_checkpointing": False}
USUAL_WORDS = "7B QLoRA, 4 x 2048, all-linear"


def _against_3090(bench: Bench) -> Mapping[str, Figure]:
    setup = bench.setup("7b", **USUAL)
    times = between_cards(
        bench.step_seconds(setup, "rtx-4090"), bench.step_seconds(setup, "rtx-3090")
    )
    less = Range(100 - 100 * times.high, 100 - 100 * times.likely, 100 - 100 * times.low)
    return {"less_time_percent": Figure(less, USUAL_WORDS)}


def _bandwidths(bench: Bench) -> Mapping[str, Figure]:
    a100 = [bench.gpus[one].bandwidth_bytes_per_s for one in ("a100-40gb-pcie", "a100-80gb-sxm")]
    return {
        "4090_tb_per_s": Figure(
            Range.exact(bench.gpus["rtx-4090"].bandwidth_bytes_per_s / TB), "data sheet"
        ),
        "a100_tb_per_s": Figure(
            Range(min(a100) / TB, sum(a100) / 2 / TB, max(a100) / TB), "data sheets, 40G and 80G"
        ),
    }


def _tokens(bench: Bench) -> Mapping[str, Figure]:
    """The article gives no length or batch: the fastest setting that fits stands for it.

    Without recomputation a token takes 2 FLOPs a weight forward and 2 for the gradient of the
    inputs; what the claimed speed needs is said as a share of the card's best matrix rate.
    """
    figures = {}
    for size, claimed in (("7b", 3200), ("13b", 1800)):
        setup = bench.setup(size, {"lora": {"targets": "attention"}}, seq_len=1024, **NO_RECOMPUTE)
        ours = bench.tokens_per_s(setup, "rtx-4090")
        flops_per_s = claimed * 4 * bench.models[size].num_params
        share = flops_per_s / bench.gpus["rtx-4090"].gemm_flops_per_s["bfloat16"]
        how = (
            f"2 x 1024, attention only, nothing recomputed: the fastest that fits; "
            f"the claim takes {share:.0%} of the card's matrix rate"
        )
        figures[f"{size}_tokens_per_s"] = Figure(ours, how)
    return figures


def _sheets(bench: Bench) -> Mapping[str, Figure]:
    small, large = bench.gpus["rtx-4090"], bench.gpus["a100-80gb-sxm"]
    setup = bench.setup("7b", **USUAL)
    times = between_cards(
        bench.step_seconds(setup, "rtx-4090"), bench.step_seconds(setup, "a100-80gb-sxm")
    )
    return {
        "4090_tflops": Figure(
            Range.exact(small.peak_flops_per_s["float16"] / 1e12), "data sheet, dense, fp32 sums"
        ),
        "4090_gb_per_s": Figure(Range.exact(small.bandwidth_bytes_per_s / GB), "data sheet"),
        "a100_tflops": Figure(Range.exact(large.peak_flops_per_s["float16"] / 1e12), "data sheet"),
        "a100_gb_per_s": Figure(Range.exact(large.bandwidth_bytes_per_s / GB), "data sheet"),
        "step_ratio": Figure(times, USUAL_WORDS),
    }


def _several_cards(bench: Bench) -> Mapping[str, Figure]:
    """Two cards at the same effective batch, data parallel and sharded."""
    one = bench.setup("7b", **USUAL)
    alone = bench.step_seconds(one, "rtx-4090")
    speedups = [
        ratio(
            alone,
            bench.step_seconds(
                one.with_changes(grad_accum=2, num_gpus=2, parallel=parallel), "rtx-4090", 2
            ),
        ).likely
        for parallel in ("ddp", "fsdp")
    ]
    how = f"{USUAL_WORDS}; data parallel {speedups[0]:.2f}, sharded {speedups[1]:.2f}"
    best = max(speedups)
    return {"2_cards_speedup": Figure(Range(best, best, best), how)}


def _power(bench: Bench) -> Mapping[str, Figure]:
    watts = bench.gpus["rtx-4090"].tdp_watts or 0.0
    return {"card_watts": Figure(Range.exact(watts), "data sheet; throttling is measured by audit")}


SPEED: Mapping[str, Callable[[Bench], Mapping[str, Figure]]] = {
    "A-S1": _against_3090,
    "A-S3": _bandwidths,
    "B-S1": _tokens,
    "B-S2": _sheets,
    "B-S3": _several_cards,
    "B-S4": _power,
}
