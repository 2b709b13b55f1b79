"""The fingerprint table: its rows agree with physics, with each other and with the card catalog."""

import pytest

from loracle.catalog.fingerprints import (
    by_device_id,
    by_driver_name,
    find_fingerprint,
    load_fingerprints,
    sold_as,
)
from loracle.catalog.gpus import load_gpus
from loracle.errors import CatalogError

TABLE = load_fingerprints()
MIB = 2**20


def test_ids_and_device_ids_are_one_to_one():
    assert len({card.id for card in TABLE}) == len(TABLE)
    ids = [one for card in TABLE for one in card.device_ids]
    assert len(set(ids)) == len(ids)
    assert all(len(one) == 4 and int(one, 16) for one in ids)


@pytest.mark.parametrize("card", TABLE, ids=lambda card: card.id)
def test_row_is_plausible(card):
    assert card.family in ("geforce", "datacenter", "workstation", "mining")
    assert card.memory_bytes
    assert all(size > max(card.memory_bytes) for size in card.modified_bytes)
    if card.measured_flops_per_s:
        low, high = card.measured_flops_per_s
        assert low <= high <= 1.15 * low
        if card.peak_flops_per_s:
            assert 0.5 < low / card.peak_flops_per_s < 1.2
    low, high = card.fp64_flops_per_s
    assert high in (low, 2 * low)
    assert card.sources["ids"]


@pytest.mark.parametrize(
    ("card", "tflops"),
    [("rtx-4090", 1.29), ("rtx-4090-d", 1.15), ("rtx-3090", 0.56), ("t4", 0.25), ("a10", 0.488),
     ("a30", 5.2), ("v100-sxm2", 7.8), ("a100-40gb-pcie", 9.7), ("rtx-5090", 1.64)],
)  # fmt: skip
def test_fp64_of_the_data_sheets(card, tflops):
    assert find_fingerprint(card).fp64_flops_per_s[0] / 1e12 == pytest.approx(tflops, rel=0.02)


def test_rows_agree_with_the_card_catalog():
    gpus = {gpu.id: gpu for gpu in load_gpus()}
    for card in TABLE:
        for gpu_id in card.gpu_ids:
            gpu = gpus[gpu_id]
            assert gpu.compute_capability == card.compute_capability, gpu_id
            assert gpu.num_sms in (None, card.num_sms), gpu_id
            if gpu_id != "rtx-pro-6000":  # two sources, two bandwidths; the note says so
                ratio = gpu.bandwidth_bytes_per_s / card.bandwidth_bytes_per_s
                assert ratio == pytest.approx(1, abs=0.02), gpu_id


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("A100 40G", ["a100-40gb-sxm", "a100-40gb-pcie"]),
        ("RTX 4090", ["rtx-4090"]),
        ("RTX4090D", ["rtx-4090-d"]),
        ("4090", ["rtx-4090"]),
        ("2x RTX 4090 24GB", ["rtx-4090"]),
        ("RTX 3090 24G 整卡 1750/月", ["rtx-3090"]),
        ("A100 40G custom server, 8 cores, 64 GB RAM", ["a100-40gb-sxm", "a100-40gb-pcie"]),
        ("NVIDIA A100-SXM4-80GB", ["a100-80gb-sxm"]),
        ("L40", ["l40"]),
        ("L40S", ["l40s"]),
        ("A10G", ["a10g"]),
        ("4070 Ti Super", ["rtx-4070-ti-super"]),
    ],
)
def test_offers_as_they_are_typed(text, ids):
    assert [card.id for card in sold_as(text).fingerprints] == ids


def test_memory_count_and_part_are_read_from_the_offer():
    claim = sold_as("2x RTX 4090 48G")
    assert (claim.num_gpus, claim.memory_gib, claim.part) == (2, 48, False)
    assert sold_as("A100 MIG 1g.5gb").part
    assert sold_as("A100 1/20 slice, 4 GB").part
    assert sold_as("4090, 128GB RAM").memory_gib is None


@pytest.mark.parametrize("text", ["banana", "RTX 3080 16G", "", "RX 7900 XTX"])
def test_no_card_is_an_error_never_a_guess(text):
    with pytest.raises(CatalogError) as caught:
        sold_as(text)
    assert caught.value.code == "E038"


@pytest.mark.parametrize("card", TABLE, ids=lambda card: card.id)
def test_every_card_is_found_by_its_names(card):
    assert card in sold_as(card.name).fingerprints
    assert by_device_id(card.device_ids[0].lower()) == card
    assert by_driver_name(card.driver_names[0], card.memory_bytes[0]).group == card.group


def test_memory_decides_between_cards_of_one_name():
    assert by_driver_name("NVIDIA GeForce RTX 3080", 10240 * MIB).id == "rtx-3080-10gb"
    assert by_driver_name("NVIDIA GeForce RTX 3080", 12288 * MIB).id == "rtx-3080-12gb"


def test_own_figures_have_a_date_a_command_and_pass_their_own_card():
    measured = [card for card in TABLE if card.own]
    assert [card.id for card in measured] == ["h200-141gb-sxm"]
    for card in measured:
        assert card.own["date"]
        assert card.own["command"]
        low, high = card.fp64_flops_per_s
        assert 0.75 * low < card.own["fp64_tflops"] * 1e12 < 1.25 * high
        share = card.own["copy_gb_per_s"] * 1e9 / card.bandwidth_bytes_per_s
        assert share == pytest.approx(card.copy_share, abs=0.01)
