"""What only a card can show: the packed kernel, paged 8-bit AdamW through a resume, NVML."""

import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card"),
]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "train"


@pytest.fixture(scope="module")
def tiny():
    spec = importlib.util.spec_from_file_location("tiny_model", BENCHMARKS / "tiny_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make_run(tiny, tmp_path, monkeypatch):
    from loracle.domain.recipe import Recipe
    from loracle.jobs.train.launch import create_run
    from loracle.jobs.train.options import Options

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny.make_model(tmp_path / "model", dtype="bfloat16")
    tiny.write_rows(tmp_path / "train.jsonl", tiny.make_rows(64))

    def make(name, steps, groups=None, **training):
        recipe = {
            "model": str(tmp_path / "model"), "method": "qlora",
            "data": {"train": str(tmp_path / "train.jsonl")},
            "lora": {"rank": 4, "targets": "attention", "dropout": 0.1},
            "training": {"seq_len": 128, "steps": steps, "effective_batch": 4, "micro_batch": 2,
                         "learning_rate": 1e-3} | training,
            "save": {"every_steps": 2, "folder": str(tmp_path / "runs")},
        }  # fmt: skip
        for group, values in (groups or {}).items():
            recipe[group] = recipe.get(group, {}) | values if isinstance(values, dict) else values
        return create_run(Recipe.model_validate(recipe), Options(merges=False), name=name)

    return make


def test_the_packed_kernel_keeps_documents_apart(tiny, tmp_path):
    """Logits of packed documents by the kernel equal each alone by SDPA, to bf16's rounding."""
    from transformers import AutoModelForCausalLM

    from loracle.jobs.train import attention
    from loracle.jobs.train.collate import Collator

    device = torch.device("cuda")
    assert attention.usable(device, torch.bfloat16, softcapped=False)
    folder = tiny.make_model(tmp_path / "model", dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    lengths = [7, 12, 5]
    ids = torch.randint(3, 250, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    row = {"input_ids": ids.tolist(), "labels": ids.tolist(), "seq_lengths": lengths}
    batch = Collator(0, flat=True)([row])
    inputs = {
        key: value.to(device) if torch.is_tensor(value) else value
        for key, value in batch.items() if key != "labels"
    }  # fmt: skip
    alone = [model(one[None].to(device), use_cache=False).logits[0] for one in ids.split(lengths)]
    model.set_attn_implementation(attention.register())
    packed = model(**inputs, use_cache=False).logits[0]
    for got, wanted in zip(packed.split(lengths), alone, strict=True):
        assert torch.allclose(got.float(), wanted.float(), atol=0.02, rtol=0.02)


def test_paged_8_bit_adamw_survives_a_resume(make_run):
    """Its states live in unified memory; earlier versions could not load them again."""
    from loracle.jobs.train.process import train_run

    whole = make_run("whole", 8, optimizer="paged_adamw_8bit")
    assert train_run(whole, resume=False).state == "finished"
    run = make_run("cut", 8, optimizer="paged_adamw_8bit")
    stop_at(run, 3)
    train_run(run, resume=False)
    assert train_run(run, resume=True).state == "finished"
    assert losses_of(run) == losses_of(whole)


def stop_at(run, step):
    import threading

    def stop():
        while not any(event["step"] >= step for event in run.events("step")):
            pass
        run.stop_request.touch()

    threading.Thread(target=stop, daemon=True).start()


def losses_of(run):
    return {event["step"]: event["loss"] for event in run.events("step")}


@pytest.mark.parametrize(
    "groups",
    [
        {"quant": {"type": "int8"}},
        {"quant": {"type": "nf4", "double": False}},
        {"lora": {"use_dora": True}},
        {"method": "lora", "lora": {"use_dora": True}},
        {"quant": {"type": "int8"}, "lora": {"use_rslora": True}},
        {"training": {"kbit_upcast": True}},
    ],
    ids=["int8", "nf4", "qdora", "dora", "rslora-int8", "upcast"],
)
def test_a_variant_trains_and_resumes_with_the_same_losses(make_run, groups):
    from loracle.jobs.train.process import train_run

    whole, cut = make_run("whole", 8, groups), make_run("cut", 8, groups)
    assert train_run(whole, resume=False).state == "finished"
    (layout,) = whole.events("layout")
    assert (layout["flat"], layout["packing"]) == ("kbit_upcast" not in str(groups), True)
    stop_at(cut, 3)
    train_run(cut, resume=False)
    assert train_run(cut, resume=True).state == "finished"
    assert losses_of(cut) == losses_of(whole)
    assert losses_of(whole)[8] < losses_of(whole)[1]


def test_the_probe_of_the_layout_leaves_the_cards_figures_alone(make_run, monkeypatch):
    from loracle.jobs.train import isolation
    from loracle.jobs.train.process import train_run

    probed = make_run("probed", 4)
    train_run(probed, resume=False)
    monkeypatch.setattr(isolation, "keeps_apart", lambda *args: True)
    blind = make_run("blind", 4)
    train_run(blind, resume=False)
    assert losses_of(probed) == losses_of(blind)
    peaks = [[event["peak_bytes"] for event in one.events("step")] for one in (probed, blind)]
    assert peaks[0] == peaks[1]


def test_a_step_tells_memory_power_and_use(make_run):
    from loracle.jobs.train.process import train_run

    run = make_run("seen", 60)
    train_run(run, resume=False)
    last = list(run.events("step"))[-1]
    assert last["peak_bytes"] > 0
    assert last["reserved_bytes"] >= last["peak_bytes"]
    told = [event for event in run.events("step") if "power_w" in event]
    assert told
    assert told[0]["temperature_c"] > 0


def test_fp16_with_fp32_adapters_trains_as_on_a_card_without_bf16(make_run, monkeypatch):
    """TRL casts adapters on a 4-bit base to bf16, which fp16's loss scaling cannot unscale."""
    from dataclasses import replace

    from loracle.jobs.train import place
    from loracle.jobs.train.process import train_run

    real = place.local_card
    monkeypatch.setattr(place, "local_card", lambda: replace(real(), capability=(7, 5)))
    run = make_run("turing", 12)
    assert train_run(run, resume=False).state == "finished"
    setup = run.read_facts()["setup"]
    assert (setup["base_dtype"], setup["lora"]["dtype"]) == ("float16", "float32")
    losses = [event["loss"] for event in run.events("step")]
    assert all(0 < loss < 10 for loss in losses)
    assert losses[-1] < losses[0]
