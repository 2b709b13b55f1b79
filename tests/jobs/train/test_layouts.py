"""Real runs of architectures in which documents are not apart, and of those whose kernel leaks."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from loracle.errors import RunError
from loracle.jobs.runs import write_json
from loracle.jobs.train import attention
from loracle.jobs.train.process import train_run
from loracle.planner import resolve

_spec = importlib.util.spec_from_file_location(
    "architectures", Path(__file__).with_name("architectures.py")
)
architectures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(architectures)


WITH_A_LAW = (
    "mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe qwen3_5_text gemma gemma2 gemma3_text phi "
    "phi3 falcon gpt_neox opt bloom gpt2 gpt_bigcode gptj starcoder2 stablelm olmo olmo2 olmo3 "
    "olmoe granite granitemoe glm glm4 cohere cohere2 smollm3 seed_oss arcee ernie4_5 exaone4 "
    "helium gpt_oss deepseek_v2 deepseek_v3 minicpm3 mpt"
)


@pytest.fixture
def model_of(place, tmp_path):
    """A folder with a tiny model of an architecture and the tests' tokenizer."""

    def make(architecture):
        folder = tmp_path / architecture
        shutil.copytree(place / "model", folder)
        for path in folder.glob("*.safetensors"):
            path.unlink()
        model = architectures.tiny_random_model(architecture, vocab_size=259, eos_token_id=2)
        model.save_pretrained(folder)
        return str(folder)

    return make


def checks(run):
    return {event["id"]: event["values"] for event in run.events("check")}


@pytest.mark.parametrize("foretold", [True, False])
def test_what_cannot_be_packed_trains_unpacked_and_says_so(
    model_of, make_run, losses, stop_at, monkeypatch, foretold
):
    """By the catalog's table, and where another version of transformers makes that wrong."""
    if not foretold:
        monkeypatch.setattr(resolve, "can_pack", lambda *_: True)
    training = {"steps": None, "epochs": 1, "effective_batch": 4, "micro_batch": 2}
    groups = {"model": model_of("falcon"), "training": training, "save": {"every_steps": 1}}
    packed = make_run("asked", **groups)
    assert train_run(packed, resume=False).state == "finished"
    if foretold:
        assert checks(packed)["packing_off"] == {"architecture": "falcon"}
    else:
        said = checks(packed)["packing_leaks"]
        assert (said["architecture"], said["sequences"]) == ("falcon", 40)
        assert said["sequences_steps"] == 10
        assert said["packed"] < 40
    facts = packed.read_facts()
    assert (facts["setup"]["packing"], facts["layout"]["packing"]) == (False, False)
    assert facts["data"]["train"]["counts"]["sequences"] == 40
    assert len(losses(packed)) == 10
    again = make_run("again", **groups)
    stop_at(again, 3)
    assert train_run(again, resume=False).state == "stopped"
    assert train_run(again, resume=True).state == "finished"
    assert losses(again) == losses(packed)


@pytest.mark.parametrize("architecture", ["mixtral", "qwen3_moe"])
def test_experts_train_without_a_load_balancing_loss(model_of, make_run, losses, architecture):
    """The loss is the answers' alone: the router is not trained, and stays as it was."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = model_of(architecture)
    run = make_run(model=model, training={"steps": 6})
    assert train_run(run, resume=False).state == "finished"
    assert losses(run)[6] < losses(run)[1] < 8
    tuned = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), run.adapter)
    assert not any("gate" in name for name, _ in tuned.named_parameters() if "lora_" in name)


def test_an_architecture_without_sdpa_trains_with_its_own_attention(model_of, make_run):
    run = make_run(model=model_of("gpt_oss"))
    assert train_run(run, resume=False).state == "finished"
    facts = run.read_facts()
    assert facts["setup"]["attention"] == facts["layout"]["attention"] == "eager"


def test_a_run_that_packed_is_not_resumed_without(model_of, make_run):
    """As after a change of version: the rows would come in another order, in other steps."""
    run = make_run(model=model_of("falcon"))
    facts = run.read_facts() | {"layout": {"attention": "sdpa", "flat": False, "packing": True}}
    write_json(run.facts, facts)
    with pytest.raises(RunError) as raised:
        train_run(run, resume=True)
    assert (raised.value.code, raised.value.message) == ("E067", "error.train.packing_changed")


@pytest.mark.parametrize(("architecture", "flat"), [("llama", True), ("stablelm", False)])
def test_a_kernel_that_leaks_is_passed_over(model_of, make_run, losses, monkeypatch,
                                            architecture, flat):  # fmt: skip
    """The kernel's contract in its place, for a CPU; the losses are those of plain SDPA."""
    model = model_of(architecture)
    plain = make_run("plain", model=model)
    train_run(plain, resume=False)
    monkeypatch.setattr(attention, "usable", lambda *args, **kwargs: True)
    monkeypatch.setattr(attention, "_varlen", lambda: architectures.kernel_contract)
    attention._options.cache_clear()
    run = make_run("kernel", model=model)
    assert train_run(run, resume=False).state == "finished"
    attention._options.cache_clear()
    (layout,) = run.events("layout")
    assert (layout["flat"], layout["packing"]) == (flat, True)
    assert ("kernel_leaks" in checks(run)) is not flat
    assert losses(run) == pytest.approx(losses(plain), rel=1e-3)


def test_the_probe_changes_no_loss(make_run, losses, monkeypatch):
    """Dropout draws from the generators that the probe must leave alone."""
    from loracle.jobs.train import isolation

    lora = {"rank": 4, "targets": "attention", "dropout": 0.1}
    probed = make_run("probed", lora=lora)
    train_run(probed, resume=False)
    monkeypatch.setattr(isolation, "keeps_apart", lambda *args: True)
    blind = make_run("blind", lora=lora)
    train_run(blind, resume=False)
    assert losses(probed) == losses(blind)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "qlora"])
@pytest.mark.parametrize("architecture", WITH_A_LAW.split())
def test_every_architecture_with_a_memory_law_trains(model_of, make_run, architecture, method):
    run = make_run(
        model=model_of(architecture), method=method, training={"steps": 2},
        lora={"targets": "all-linear", "allow_partial": True},
    )  # fmt: skip
    assert train_run(run, resume=False).state == "finished"
    assert all(event["grad_norm"] > 0 for event in run.events("step"))
