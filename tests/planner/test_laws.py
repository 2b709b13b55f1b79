"""Answers that are remembered are the answers that the laws give."""

import pytest

from loracle.domain.gpu import Node
from loracle.domain.recipe import Recipe
from loracle.estimate.memory import estimate_memory
from loracle.estimate.speed import estimate_speed
from loracle.planner.laws import formula_laws
from loracle.planner.resolve import on_card, resolve


def close(left, right):
    return all(
        getattr(left, end) == pytest.approx(getattr(right, end), rel=1e-12)
        for end in ("low", "likely", "high")
    )


def test_every_card_gets_what_the_laws_say_of_it(model, gpus):
    """Cards of one capability share an estimate, moved by their CUDA contexts."""
    laws = formula_laws()
    base = resolve(Recipe(model="m"), model("Qwen/Qwen3-8B"))
    for gpu in gpus.values():
        setup, node = on_card(base, gpu), Node(gpu_id=gpu.id)
        kept, asked = laws.memory(setup, gpu), estimate_memory(setup, gpu)
        assert close(kept.device_bytes, asked.device_bytes), gpu.id
        assert close(kept.reserved_bytes, asked.reserved_bytes), gpu.id
        fast, slow = laws.speed(setup, gpu, node), estimate_speed(setup, gpu, node=node)
        assert close(fast.step_seconds, slow.step_seconds), gpu.id
