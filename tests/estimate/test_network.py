"""Bytes between cards, worked out by hand, and links by card."""

from dataclasses import replace

import pytest

from loracle.catalog.gpus import find_gpu
from loracle.catalog.models import find_model
from loracle.domain.gpu import Node
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.estimate.network import has_peer_to_peer, link_bytes_per_s, stored_bytes, traffic

A100 = find_gpu("a100-80gb-sxm")
SETUP = TrainingSetup(
    model=find_model("meta-llama/Llama-2-7b-hf", offline=True), method="lora", quant=None,
    num_gpus=4, parallel="ddp", lora=LoraSetup(rank=16, targets="attention", dtype="float32"),
)  # fmt: skip


def test_one_card_says_nothing():
    alone = traffic(SETUP.with_changes(num_gpus=1, parallel="none"), A100)
    assert (alone.micro_step_bytes, alone.final_bytes, alone.final_seconds) == (0, 0, 0)


def test_data_parallel_moves_the_adapter_gradients_once():
    # 32 layers x 4 targets x 16 x (4096 + 4096) parameters of 4 bytes; a ring of 4 moves 6/4.
    params = 32 * 4 * 16 * 8192
    moved = traffic(SETUP, A100)
    assert moved.final_bytes == pytest.approx(params * 4 * 1.5)
    assert moved.micro_step_bytes == 0


def test_sharding_moves_every_weight_twice_a_micro_step():
    moved = traffic(SETUP.with_changes(parallel="fsdp"), A100)
    assert moved.micro_step_bytes == pytest.approx(2 * 0.75 * 2 * SETUP.model.num_params)


def test_packed_weights_travel_packed():
    packed = SETUP.with_changes(method="qlora", quant="nf4")
    linear = SETUP.model.num_params - 2 * 32000 * 4096 - 65 * 4096
    assert stored_bytes(packed) == pytest.approx(0.5625 * linear + 2 * (262_144_000 + 266_240))


def test_a_node_states_its_link():
    node = Node(gpu_id=A100.id, num_gpus=2, link_bytes_per_s=3e9)
    assert link_bytes_per_s(A100, node) == 3e9


def test_order_of_links():
    """NVLink over PCIe with peer-to-peer over PCIe through the CPU's memory."""
    nvlink, pcie, geforce = (
        link_bytes_per_s(find_gpu(name)) for name in ("h100-80gb-sxm", "l40s", "rtx-4090")
    )
    assert nvlink > 5 * pcie
    assert pcie > 1.5 * geforce
    assert not has_peer_to_peer(find_gpu("rtx-3090"))
    assert has_peer_to_peer(find_gpu("rtx-a5000"))
    assert has_peer_to_peer(find_gpu("rtx-4000-ada"))


def test_pcie_bridge_is_no_nvlink_until_said():
    pcie = find_gpu("a100-80gb-pcie")
    assert link_bytes_per_s(pcie) < 30e9
    assert link_bytes_per_s(replace(pcie, pcie_generation=3)) < link_bytes_per_s(pcie)
