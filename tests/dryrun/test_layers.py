"""Placed layers are the whole model's, event by event."""

import pytest

from loracle.dryrun.layers import make_plan, make_plans
from loracle.dryrun.replay import replay
from loracle.dryrun.trace import trace

CASES = {
    "dense": ("llama", {}),
    "dense, no checkpointing": ("llama", {"gradient_checkpointing": False}),
    "every second layer": ("llama", {"checkpoint_every": 2}),
    "tied, full fine-tuning": ("qwen2-tied", {"method": "full"}),
    "4-bit with fp32 head": (
        "llama",
        {"method": "qlora", "quant": "nf4-double", "kbit_upcast": True, "lora": {"dropout": 0.05}},
    ),
    "accumulation and evaluation": ("llama", {"grad_accum": 3, "eval_micro_batch": 4}),
    "sliding window, period 2": ("gemma2", {}),
    "multi-query": ("falcon", {"gradient_checkpointing": False}),
    "experts": ("qwen3_moe", {"lora": {"targets": "q_proj,v_proj"}}),
    "fused head": ("llama", {"stack": "trl", "method": "qlora", "quant": "nf4-double"}),
    "eager": ("llama", {"attention": "eager"}),
    "two rotary tables, period 6": ("gemma3", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_placed_layers_equal_the_whole_run(name, make_setup):
    config, changes = CASES[name]
    setup = make_setup(config, **changes)
    placed, whole = trace(setup), trace(setup, whole=True)
    assert placed.events == whole.events
    assert placed.sizes == whole.sizes
    assert [placed.owners[i] for i in placed.owner_of] == [whole.owners[i] for i in whole.owner_of]
    assert placed.marks == whole.marks
    assert set(placed.ops) == set(whole.ops)
    assert replay(placed) == replay(whole)


def test_the_log_is_consistent(make_setup):
    made = trace(make_setup("llama", grad_accum=2, eval_micro_batch=2))
    alive: set[int] = set()
    for event in made.events:
        if event >= 0:
            assert event not in alive
            alive.add(event)
        else:
            alive.remove(~event)


def test_layers_are_placed_rather_than_run(monkeypatch, make_setup):
    """A model of 60 layers runs no more layers than one of 9."""
    from loracle.dryrun import layers

    seen = []
    real = layers.shrink
    monkeypatch.setattr(layers, "shrink", lambda c, p: seen.append(p.traced) or real(c, p))
    trace(make_setup("llama", layers=60))
    assert seen == [6]


def test_what_one_kind_of_layer_uses_lengthens_the_head(monkeypatch, make_setup):
    """Gemma 3's full attention has a rotary table of its own, let go in its first layer (5)."""
    from loracle.dryrun import runner

    run, depths = runner.run, []

    def counted(setup, config, *rest):
        depths.append(config.num_hidden_layers)
        return run(setup, config, *rest)

    monkeypatch.setattr(runner, "run", counted)
    trace(make_setup("gemma3", layers=50))
    assert depths == [20, 20]  # head 2, then head 6; never 50


@pytest.mark.parametrize(
    ("signatures", "heads"),
    [
        (["a"] * 32, [2, 0]),
        ((["s"] * 5 + ["f"]) * 8, [2, 6, 0]),
        (["d"] * 3 + ["m"] * 58, [4, 0]),  # DeepSeek V3: the third layer is dense still
        (["a", "b", "c", "d", "e", "f", "g", "h"], [0]),
    ],
)
def test_plans_in_turn(signatures, heads):
    plans = make_plans(signatures)
    assert [plan.head if plan.period else 0 for plan in plans] == heads
    for plan in plans[:-1]:
        kept = [signatures[plan.moved(i)] for i in range(plan.traced)]
        assert [kept[plan.source(i)] for i in range(plan.num_layers)] == list(signatures)


@pytest.mark.parametrize(
    ("signatures", "traced", "period"),
    [
        (["a"] * 32, 6, 1),
        (["a"] * 5, 5, 0),  # nothing to gain
        (["s", "f"] * 13, 8, 2),
        (["d"] + ["m"] * 20, 6, 1),
        ((["s"] * 5 + ["f"]) * 8, 18, 6),
        (["a", "b", "c", "d", "e", "f", "g", "h"], 8, 0),
    ],
)
def test_plans(signatures, traced, period):
    plan = make_plan(signatures)
    assert (plan.traced, plan.period) == (traced, period)
    if period:
        kept = [signatures[plan.moved(i)] for i in range(plan.traced)]
        assert [kept[plan.source(i)] for i in range(plan.num_layers)] == list(signatures)
