"""The four answers to "does it fit", and the micro-batch that auto picks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loracle.domain.estimate import Range
from loracle.domain.gpu import Node
from loracle.domain.recipe import Recipe
from loracle.planner.fit import choose, fit_of, micro_batches
from loracle.planner.place import Place, part_of
from loracle.planner.resolve import resolve
from loracle.planner.work import given_tokens, workload
from loracle.units import GIB


@pytest.mark.parametrize(
    ("device", "fit"),
    [
        ((18, 20, 22), "fits"),
        ((20, 22, 23.5), "tight"),  # 0.5 of 24 GiB left at the high end
        ((22, 23, 25), "risky"),
        ((23, 24.5, 26), "risky"),
        ((24.5, 26, 28), "no"),
    ],
)
def test_fit_against_24_gib(device, fit):
    assert fit_of(Range(*device), 24) == fit


@given(st.floats(1, 1e12), st.floats(0, 0.5), st.floats(0, 0.5), st.floats(1, 1e12))
def test_more_memory_never_fits_worse(likely, below, above, usable):
    order = ("no", "risky", "tight", "fits")
    device = Range.around(likely, below, above)
    assert order.index(fit_of(device, usable)) <= order.index(fit_of(device, usable * 1.1))


def test_micro_batches_divide_the_batch():
    assert micro_batches(12) == (1, 2, 3, 4, 6, 12)


def the_choice(shape, gpu, laws, *, num_gpus=1, micro_batch=None, **recipe):
    asked = Recipe.model_validate({"model": "m", **recipe})
    setup = resolve(asked, shape)
    work = workload(asked, given_tokens(1_000_000), packing=True)
    place = Place(gpu=gpu, node=Node(gpu_id=gpu.id, num_gpus=num_gpus))
    return choose(setup, place, work, laws, micro_batch=micro_batch)


def test_auto_keeps_the_effective_batch_and_takes_the_fastest(model, gpus, laws):
    shape = model("Qwen/Qwen3-8B")
    auto = the_choice(shape, gpus["rtx-4090"], laws)
    assert auto.setup.micro_batch * auto.setup.grad_accum == 16
    assert auto.fit == "fits"
    for size in micro_batches(16):
        other = the_choice(shape, gpus["rtx-4090"], laws, micro_batch=size)
        if other.fit == "fits":
            assert other.steps_per_s <= auto.steps_per_s


def test_the_recipes_micro_batch_is_kept(model, gpus, laws):
    choice = the_choice(model("Qwen/Qwen3-8B"), gpus["rtx-4090"], laws, micro_batch=2)
    assert (choice.setup.micro_batch, choice.setup.grad_accum) == (2, 8)


def test_several_cards_share_the_batch(model, gpus, laws):
    choice = the_choice(model("Qwen/Qwen3-8B"), gpus["rtx-4090"], laws, num_gpus=4)
    setup = choice.setup
    assert setup.micro_batch * setup.grad_accum * setup.num_gpus == 16
    assert setup.parallel == "ddp"  # adapters' gradients are small, so nothing beats it here


def test_a_model_too_large_for_one_card_is_sharded(model, gpus, laws):
    choice = the_choice(model("meta-llama/Llama-2-70b-hf"), gpus["rtx-4090"], laws, num_gpus=4)
    assert (choice.setup.parallel, choice.fit) == ("fsdp", "fits")


def test_a_batch_that_cannot_be_split(model, gpus, laws):
    shape = model("Qwen/Qwen3-8B")
    assert the_choice(
        shape, gpus["rtx-4090"], laws, num_gpus=4, training={"effective_batch": 6}
    ) is None  # fmt: skip


def test_a_software_slice_is_a_small_card(gpus):
    whole = gpus["a100-40gb-pcie"]
    node = Node(gpu_id=whole.id, share="software-slice", share_fraction=0.05, memory_bytes=4 * GIB)
    part = part_of(whole, node)
    assert part.usable_bytes < 4 * GIB
    assert part.gemm_flops_per_s["bfloat16"] == pytest.approx(
        whole.gemm_flops_per_s["bfloat16"] / 20
    )


def test_a_mig_part_has_its_profiles_share(gpus):
    whole = gpus["h100-80gb-pcie"]
    profile = whole.mig_profiles[0]
    node = Node(gpu_id=whole.id, share="mig", memory_bytes=profile.memory_bytes)
    part = part_of(whole, node)
    ratio = part.gemm_flops_per_s["bfloat16"] / whole.gemm_flops_per_s["bfloat16"]
    assert ratio == pytest.approx(profile.sm_fraction)
    assert part.nvlink_bytes_per_s is None
