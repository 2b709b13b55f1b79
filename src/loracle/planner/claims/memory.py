"""Claims about memory. GB are decimal, as the articles use them; the laws count bytes."""

from collections.abc import Callable, Mapping

from loracle.domain.estimate import Range
from loracle.domain.gpu import Node
from loracle.domain.setup import TrainingSetup
from loracle.planner.claims.figures import Bench, Figure, ratio, spread
from loracle.planner.fit import choose
from loracle.planner.place import Place, part_of
from loracle.planner.work import Workload
from loracle.units import GB, GIB

FULL = {"method": "full", "stack": "hf-trainer", "training": {"optimizer": "adamw_torch"}}
LORA = {"method": "lora"}
ATTENTION = {"lora": {"targets": "attention"}}


def _trainable(bench: Bench) -> Mapping[str, Figure]:
    counts = [
        bench.laws.memory(bench.setup("7b", {"lora": lora}), bench.gpus["rtx-4090"])
        for lora in ({"rank": 8, "targets": "attention"}, {"rank": 16, "targets": "all-linear"})
    ]
    params = spread([Range.exact(one.trainable_params) for one in counts])
    how = "rank 8 attention .. rank 16 all-linear"
    return {
        "share_percent": Figure(params.scaled(100 / bench.models["7b"].num_params), how),
        "trainable_millions": Figure(params.scaled(1e-6), how),
    }


def _full_and_lora(bench: Bench) -> Mapping[str, Figure]:
    full = bench.device_bytes(bench.setup("7b", FULL, seq_len=1024))
    lora = _one_to_two_k(bench, "7b", LORA)
    return {
        "full_gb": Figure(full.scaled(1 / GB), "bf16 weights and states, 1 x 1024"),
        "lora_gb": Figure(lora.scaled(1 / GB), "1 x 1024 .. 4 x 2048"),
    }


def _qlora_by_size(bench: Bench) -> Mapping[str, Figure]:
    return {
        f"{size}_gb": Figure(_one_to_two_k(bench, size).scaled(1 / GB), "1 x 1024 .. 4 x 2048")
        for size in ("7b", "13b", "33b", "70b")
    }


def _long_or_wide(bench: Bench) -> Mapping[str, Figure]:
    usual = bench.device_bytes(bench.setup("7b", ATTENTION, seq_len=2048))
    longer = bench.device_bytes(bench.setup("7b", ATTENTION, seq_len=8192))
    wider = bench.device_bytes(bench.setup("7b", seq_len=2048))
    return {
        "long_percent": Figure(_more(longer, usual), "7B, 1 x 8192 against 1 x 2048"),
        "all_linear_percent": Figure(_more(wider, usual), "7B, 1 x 2048, all-linear"),
    }


def _activations(bench: Bench) -> Mapping[str, Figure]:
    def working(**knobs: object) -> float:
        """Bytes beyond what is there before the step."""
        memory = bench.laws.memory(bench.setup("7b", **knobs), bench.gpus["a100-80gb-sxm"])
        return memory.allocated_bytes.likely - memory.model_bytes

    kept = working(seq_len=2048) / working(seq_len=2048, gradient_checkpointing=False)
    doubling = working(seq_len=4096, gradient_checkpointing=False) / working(
        seq_len=2048, gradient_checkpointing=False
    )
    with_it = bench.step_seconds(bench.setup("7b", seq_len=2048), "a100-80gb-sxm")
    without = bench.step_seconds(
        bench.setup("7b", seq_len=2048, gradient_checkpointing=False), "a100-80gb-sxm"
    )
    return {
        "activations_per_doubling": Figure(Range.exact(doubling), "7B, 2048 to 4096 tokens"),
        "kept_share": Figure(Range.exact(kept), "7B, 1 x 2048"),
        "slower_percent": Figure(_more(with_it, without), "7B, 1 x 2048, A100 80G"),
    }


def _rank(bench: Bench) -> Mapping[str, Figure]:
    gpu = bench.gpus["rtx-4090"]
    halves = [
        bench.laws.memory(bench.setup("7b", {"lora": {"rank": rank}}), gpu).trainable_params
        for rank in (8, 16)
    ]
    return {"trainable_ratio": Figure(Range.exact(halves[0] / halves[1]), "rank 8 / rank 16")}


def _attention_only(bench: Bench) -> Mapping[str, Figure]:
    fewer = bench.device_bytes(bench.setup("7b", ATTENTION, seq_len=2048))
    wider = bench.device_bytes(bench.setup("7b", seq_len=2048))
    saved = ratio(fewer, wider)
    percent = Range(100 - 100 * saved.high, 100 - 100 * saved.likely, 100 - 100 * saved.low)
    return {"saved_percent": Figure(percent, "7B QLoRA, 1 x 2048, rank 16")}


def _slice(bench: Bench) -> Mapping[str, Figure]:
    part = part_of(
        bench.gpus["a100-40gb-pcie"],
        Node(gpu_id="a100-40gb-pcie", share="software-slice", memory_bytes=4 * GIB),
    )
    memory = bench.laws.memory(bench.setup("7b", ATTENTION, seq_len=512), part)
    weights = Range.exact(memory.model_bytes / GB)
    return {
        "weights_gb": Figure(weights, "7B in NF4 with double quantisation"),
        "needed_gib": Figure(memory.device_bytes.scaled(1 / GIB), "needed at 1 x 512"),
    }


def _seventy(bench: Bench) -> Mapping[str, Figure]:
    """Measured runs decide where there are any: 70B under a cap of an A100 40G's size."""
    figures = {}
    for name, run_id, setting in (
        ("plain_trainer_gb", "h200a-09", "plain Trainer, 1 x 512"),
        ("fused_head_gb", "h200t-12", "fused head, 1 x 1024"),
    ):
        run = bench.runs[run_id]
        assert run.peak_reserved_bytes is not None
        assert run.memory_cap_bytes is not None
        how = f"measured, reserved under a cap of {run.memory_cap_bytes / GIB:.1f} GiB; {setting}"
        figures[name] = Figure(Range.exact(run.peak_reserved_bytes / GB), how)
    plain = {"stack": "hf-trainer", "training": {"kbit_upcast": False}, **ATTENTION}
    device = bench.device_bytes(bench.setup("70b", plain, seq_len=512), "a100-40gb-pcie")
    usable = bench.gpus["a100-40gb-pcie"].usable_bytes / GIB
    how = f"plain Trainer, 1 x 512, of {usable:.1f} GiB usable"
    figures["a100_40g_gib"] = Figure(device.scaled(1 / GIB), how)
    return figures


def _weights(bench: Bench) -> Mapping[str, Figure]:
    full = bench.device_bytes(bench.setup("7b", FULL, seq_len=1024))
    weights = bench.models["7b"].num_params * 2 / GB
    return {
        "weights_gb": Figure(Range.exact(weights), "Llama-2-7B at 16 bits"),
        "full_gb": Figure(full.scaled(1 / GB), "bf16 weights and states, 1 x 1024"),
    }


def _cuts(bench: Bench) -> Mapping[str, Figure]:
    full = bench.device_bytes(bench.setup("7b", FULL, seq_len=1024))
    lora = bench.device_bytes(bench.setup("7b", LORA, seq_len=1024))
    figures = {"lora_share": Figure(ratio(lora, full), "7B, 1 x 1024")}
    for size in ("7b", "13b"):
        used = _one_to_two_k(bench, size)
        figures[f"{size}_gb"] = Figure(used.scaled(1 / GB), "1 x 1024 .. 4 x 2048")
    return figures


def _in_use(bench: Bench) -> Mapping[str, Figure]:
    """The setting that comes nearest to what the article saw in use, as it names none."""
    figures = {}
    for size in ("7b", "13b"):
        tried = {
            micro_batch: bench.device_bytes(
                bench.setup(size, seq_len=2048, micro_batch=micro_batch)
            )
            for micro_batch in (1, 2, 4, 6, 8, 12, 16, 24, 32)
        }
        nearest = min(tried, key=lambda one: abs(tried[one].likely / GB - 21))
        figures[f"{size}_gb"] = Figure(tried[nearest].scaled(1 / GB), f"{nearest} x 2048")
    return figures


def _cards_for_large(bench: Bench) -> Mapping[str, Figure]:
    return {
        f"{size}_cards": Figure(
            Range.exact(fewest_cards(bench, bench.setup(size, seq_len=1024), "rtx-4090")),
            "QLoRA, 1 x 1024",
        )
        for size in ("34b", "70b")
    }


def fewest_cards(bench: Bench, setup: TrainingSetup, card: str, most: int = 8) -> int:
    """The fewest cards of a kind (in powers of two) that hold a setup; most + 1 where none do."""
    work = Workload(
        steps=Range.exact(1), epochs=1, sequences_per_epoch=Range.exact(16), packed=True,
        tokens=Range.exact(16 * setup.seq_len), peak_len=setup.seq_len, mean_len=setup.seq_len,
        real_len=setup.seq_len,
    )  # fmt: skip
    num_gpus = 1
    while num_gpus <= most:
        place = Place(gpu=bench.gpus[card], node=Node(gpu_id=card, num_gpus=num_gpus))
        choice = choose(setup, place, work, bench.laws, micro_batch=1)
        if choice is not None and choice.fit in ("fits", "tight"):
            return num_gpus
        num_gpus *= 2
    return most + 1


def _one_to_two_k(bench: Bench, size: str, recipe: Mapping[str, object] | None = None) -> Range:
    """The range that the articles' rough tables are said to hold for: 1-2k tokens, batch 1-4."""
    return spread(
        [
            bench.device_bytes(bench.setup(size, recipe, seq_len=1024, micro_batch=1)),
            bench.device_bytes(bench.setup(size, recipe, seq_len=2048, micro_batch=4)),
        ]
    )


def _more(left: Range, right: Range) -> Range:
    """How much more left is than right, in percent."""
    by = ratio(left, right)
    return Range((by.low - 1) * 100, (by.likely - 1) * 100, (by.high - 1) * 100)


MEMORY: Mapping[str, Callable[[Bench], Mapping[str, Figure]]] = {
    "A-M1": _trainable,
    "A-M2": _full_and_lora,
    "A-M3": _qlora_by_size,
    "A-M4": _long_or_wide,
    "A-M5": _activations,
    "A-M6": _rank,
    "A-M7": _attention_only,
    "A-M8": _slice,
    "A-M9": _seventy,
    "B-M1": _weights,
    "B-M2": _cuts,
    "B-M3": _in_use,
    "B-M4": _cards_for_large,
}
