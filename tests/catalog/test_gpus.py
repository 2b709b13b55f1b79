"""Invariants of every card, and what a name may and may not find."""

import json
from pathlib import Path

import jsonschema
import pytest

from loracle.catalog.card_file import usable_gib
from loracle.catalog.gpus import DATA, find_gpu, load_gpus
from loracle.catalog.names import card_words
from loracle.errors import CatalogError
from loracle.units import GIB, MIB

NOWHERE = Path("/nonexistent/loracle")
GPUS = load_gpus(user_folder=NOWHERE)
DOCUMENT = json.loads(DATA.read_text("utf-8"))


def find(name: str, folder: Path = NOWHERE):
    return find_gpu(name, user_folder=folder)


def test_the_data_file_meets_its_schema():
    schema = json.loads((DATA.parent / "gpus.schema.json").read_text("utf-8"))
    jsonschema.validate(DOCUMENT, schema, cls=jsonschema.Draft202012Validator)


def test_every_source_is_used_and_known():
    text = json.dumps(DOCUMENT["cards"])
    unused = [key for key in DOCUMENT["sources"] if f'"{key}"' not in text]
    assert unused == []


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.id)
def test_card_is_consistent(gpu):
    assert gpu.context_bytes < 1.5 * GIB
    assert 0.95 * gpu.memory_bytes < gpu.usable_bytes < gpu.memory_bytes
    assert 100e9 < gpu.bandwidth_bytes_per_s < 10e12
    assert gpu.supports_bf16 == ("bfloat16" in gpu.peak_flops_per_s)
    assert gpu.training_dtype in gpu.gemm_flops_per_s
    assert {"bfloat16", "float16", "float32"} == set(gpu.gemm_flops_per_s)
    for dtype, rate in gpu.gemm_flops_per_s.items():
        assert 0 < rate <= 1.2 * gpu.peak_flops_per_s.get(dtype, rate), dtype
    assert gpu.gemm_flops_per_s[gpu.training_dtype] >= 0.45 * gpu.peak_flops_per_s["float16"]
    for profile in gpu.mig_profiles:
        assert profile.memory_bytes < gpu.usable_bytes
    assert (gpu.compute_capability >= (8, 0)) or not gpu.mig_profiles


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.id)
def test_every_value_of_a_card_has_a_source_and_a_date(gpu):
    fields = ["memory_bytes", "usable_bytes", "context_bytes", "bandwidth_bytes_per_s", "num_sms"]
    fields += ["compute_capability", "pcie_generation", "tdp_watts", "min_driver", "min_cuda"]
    fields += ["nvlink_bytes_per_s"] if gpu.nvlink_bytes_per_s else []
    fields += ["mig_profiles"] if gpu.mig_profiles else []
    fields += [f"gemm_flops_per_s.{dtype}" for dtype in gpu.gemm_flops_per_s]
    fields += [f"peak_flops_per_s.{dtype}" for dtype in gpu.peak_flops_per_s]
    for field in fields:
        assert gpu.sources[field].source, field
        assert len(gpu.sources[field].date) == 10, field


def test_no_name_belongs_to_two_cards():
    owners: dict[frozenset[str], str] = {}
    for gpu in GPUS:
        for spelling in {card_words(text) for text in (gpu.id, gpu.name, *gpu.aliases)}:
            assert owners.setdefault(spelling, gpu.id) == gpu.id, spelling


def test_every_card_is_found_by_each_of_its_names():
    for gpu in GPUS:
        for name in (gpu.id, gpu.name, *gpu.aliases, f"NVIDIA {gpu.name}".upper()):
            assert find(name).id == gpu.id, name


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("RTX 4090 24GB", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 D", "rtx-4090-d"),
        ("4090D", "rtx-4090-d"),
        ("3080Ti", "rtx-3080-ti"),
        ("A100 40G", "a100-40gb-pcie"),
        ("A100-40GB", "a100-40gb-pcie"),
        ("A100-80GB-SXM", "a100-80gb-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("H200 SXM 141GB", "h200-141gb-sxm"),
        ("NVIDIA H200", "h200-141gb-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-sxm"),
        ("NVIDIA H100 PCIe", "h100-80gb-pcie"),
        ("Tesla V100-SXM2-32GB", "v100-32gb-sxm"),
        ("RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000"),
        ("RTX PRO 6000 Blackwell Max-Q", "rtx-pro-6000-max-q"),
        ("RTX 4070 Ti Super", "rtx-4070-ti-super"),
        ("a10g", "a10g"),
        ("RTX 4090 显卡", "rtx-4090"),
    ],
)
def test_spellings(name, id_):
    assert find(name).id == id_


@pytest.mark.parametrize("name", ["A100", "H100", "H100 80GB", "V100"])
def test_a_name_of_several_cards_is_refused_with_their_names(name):
    with pytest.raises(CatalogError) as caught:
        find(name)
    assert caught.value.code == "E031"
    assert caught.value.message == "error.catalog.ambiguous_gpu"
    assert name.split()[0] in str(caught.value.values["names"])


@pytest.mark.parametrize(
    ("name", "near"), [("RTX 4099", "RTX 4090"), ("A100 50GB", "A100"), ("L405", "L40S")]
)
def test_an_unknown_card_names_the_nearest_and_how_to_add_one(name, near):
    with pytest.raises(CatalogError) as caught:
        find(name)
    assert caught.value.code == "E031"
    assert near in str(caught.value.values["names"])
    assert "hint.catalog.add_gpu" in caught.value.hints


@pytest.mark.parametrize("name", ["", "  ", "--", "显卡", "quantum-9000"])
def test_a_name_like_nothing_finds_nothing(name):
    with pytest.raises(CatalogError) as caught:
        find(name)
    assert caught.value.code == "E031"


def test_the_figures_that_verdicts_hang_on():
    # read off cards: nvidia-smi totals, and the CUDA totals of out-of-memory messages
    assert find("4090").memory_bytes == 24564 * MIB
    assert find("4090").usable_bytes == round(23.52 * GIB)
    assert find("A100 40G").usable_bytes == round(39.50 * GIB)
    assert find("H200").memory_bytes == 143771 * MIB
    assert find("T4").usable_bytes == round(14.56 * GIB)
    assert find("3090").gemm_flops_per_s["bfloat16"] == 76.5e12
    assert find("4090").gemm_flops_per_s["bfloat16"] == 166.6e12
    assert find("T4").training_dtype == "float16"


def test_the_rule_for_usable_memory_holds_where_it_can_be_checked():
    read = [
        gpu
        for gpu in GPUS
        if gpu.sources["usable_bytes"].measured and gpu.sources["memory_bytes"].measured
    ]
    assert len(read) >= 12
    for gpu in read:
        by_rule = usable_gib(gpu.memory_bytes / MIB) * GIB
        assert abs(by_rule / gpu.usable_bytes - 1) < 0.01, gpu.id


def test_a_seventh_of_an_a100_is_a_tenth_of_its_memory_and_an_eighth_of_its_speed():
    small = find("a100-40gb-sxm").mig_profiles[0]
    assert small.name == "1g.5gb"
    assert small.memory_bytes / GIB == pytest.approx(4.75, abs=0.1)  # nvidia-smi mig -lgip
    assert small.sm_fraction == pytest.approx(14 / 108, abs=1e-4)


CARD = """
id: my-4090
name: My RTX 4090 with 4 GB soldered off
aliases: [garage card]
memory_mib: 20480
bandwidth_gb_per_s: 1008
gemm_tflops: {bfloat16: 160, float16: 160}
compute_capability: "8.9"
num_sms: 128
source: nvidia-smi and a torch.mm run
date: 2026-11-30
"""


def test_a_users_card_is_found_and_its_gaps_follow_the_rule(tmp_path):
    (tmp_path / "mine.yaml").write_text(CARD)
    gpu = find("garage card", tmp_path)
    assert gpu.id == "my-4090"
    assert gpu.usable_bytes == round((20 * 0.994 - 0.30) * GIB)
    assert gpu.context_bytes == 512 * MIB
    assert gpu.sources["gemm_flops_per_s.bfloat16"].source == "nvidia-smi and a torch.mm run"
    assert "derived" in gpu.sources["usable_bytes"].source


def test_a_users_card_replaces_a_shipped_one_with_its_id(tmp_path):
    (tmp_path / "t4.yaml").write_text(CARD.replace("my-4090", "t4"))
    assert find("t4", tmp_path).memory_bytes == 20480 * MIB
    assert len(load_gpus(user_folder=tmp_path)) == len(GPUS)


@pytest.mark.parametrize(
    "text",
    [
        CARD.replace("memory_mib: 20480", "memory_mib: -1"),
        CARD.replace("memory_mib: 20480", ""),
        CARD.replace("num_sms: 128", "num_cores: 128"),
        CARD.replace("date: 2026-11-30", "date: yesterday"),
        CARD.replace("bandwidth_gb_per_s: 1008", "bandwidth_gb_per_s: .nan"),
        "just a word",
        "a: [1",
        "",
    ],
)
def test_a_broken_card_file_is_one_error(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(CatalogError) as caught:
        load_gpus(user_folder=tmp_path)
    assert caught.value.code == "E035"
    assert "mine.yaml" in str(caught.value.values["path"])


def test_a_card_file_that_is_not_text_is_one_error(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00id")
    with pytest.raises(CatalogError, match="E035"):
        load_gpus(user_folder=tmp_path)
