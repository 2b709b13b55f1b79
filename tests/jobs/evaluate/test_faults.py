"""Adapters, bases and tokenizers that are broken or belong together with something else."""

import errno
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from loracle.errors import MachineError, RunError
from loracle.jobs.evaluate.evaluate import evaluate
from loracle.jobs.evaluate.result import Spec
from loracle.jobs.evaluate.subjects import Subject, loaded
from loracle.jobs.evaluate.targets import find_target, subjects_of
from loracle.jobs.merge.deed import merge_target
from loracle.jobs.writing import writing

CPU = torch.device("cpu")
Q = "base_model.model.model.layers.1.self_attn.q_proj"


def evaluated(run, held_out, folder):
    target = find_target(str(run))
    return evaluate(
        subjects_of(target, dtype="float32", merged=[]),
        Spec(data=str(held_out), max_new_tokens=4, max_items=4),
        folder,
        device=CPU,
        tokenizer_source=target.tokenizer,
    )


def change(run, edit):
    path = run / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def both_halves_gone(tensors):
    del tensors[f"{Q}.lora_A.weight"], tensors[f"{Q}.lora_B.weight"]


def half_gone(tensors):
    del tensors[f"{Q}.lora_A.weight"]


def one_layer_more(tensors):
    for half in "AB":
        name = f"{Q}.lora_{half}.weight"
        tensors[name.replace("layers.1", "layers.7")] = tensors[name].clone()


def a_kind_of_its_own(tensors):
    tensors[f"{Q}.lora_C.weight"] = torch.zeros(8, 64)


def diverged(tensors):
    tensors[f"{Q}.lora_B.weight"][3, 2] = float("nan")


@pytest.mark.parametrize(
    ("edit", "evaluating", "merging"),
    [
        (both_halves_gone, "error.evaluate.missing_part", "error.merge.hole"),
        (half_gone, "error.evaluate.missing_part", "error.merge.cannot.half"),
        (one_layer_more, "error.evaluate.strange_part", "error.merge.cannot.no_tensor"),
        (a_kind_of_its_own, "error.evaluate.strange_part", "error.merge.cannot.unknown_key"),
        (diverged, "error.merge.not_finite", "error.merge.not_finite"),
    ],
)
def test_an_adapter_that_is_not_whole(run, held_out, tmp_path, edit, evaluating, merging):
    """PEFT only warns, and leaves the parts out that it misses."""
    change(run, edit)
    with pytest.raises(RunError) as caught:
        evaluated(run, held_out, tmp_path / "out")
    assert caught.value.message == evaluating
    with pytest.raises(RunError) as caught:
        merge_target(find_target(str(run)), verifies=False)
    assert caught.value.message == merging
    assert list(run.glob("*merg*")) == []


def test_a_wrong_rank_says_what_does_not_fit(run, held_out, tmp_path):
    path = run / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"r": 4}))
    with pytest.raises(RunError) as caught:
        evaluated(run, held_out, tmp_path / "out")
    assert caught.value.code == "E079"
    assert "size mismatch" in caught.value.values["cause"]


def test_layers_chosen_on_purpose_are_no_hole(run, base, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], layers_to_transform=[1])
    shutil.rmtree(run / "adapter")
    get_peft_model(model, config).save_pretrained(run / "adapter")
    assert merge_target(find_target(str(run)), verifies=False).kept.result.changed == 2


def test_an_adapter_may_have_any_name(run, base, adapter):
    """PEFT warns and miscounts where an adapter is called `lora`, as the subject is."""
    one = Subject(id="lora", weights=str(base), adapter=adapter, dtype="float32")
    other = Subject(id="adapter", weights=str(base), adapter=adapter, dtype="float32")
    ids = torch.arange(3, 20)[None]
    with loaded([other, one], CPU) as holder, torch.no_grad():
        said = []
        for subject in (one, other):
            with holder.use(subject) as model:
                said.append(model(ids).logits)
    assert torch.equal(*said)


def test_a_tokenizer_with_more_tokens_than_the_model(run, held_out, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run / "adapter")
    tokenizer.add_tokens([*(f"<{number}>" for number in range(200)), " colour?"])
    tokenizer.save_pretrained(run / "adapter")
    for deed in (
        lambda: evaluated(run, held_out, tmp_path / "out"),
        lambda: merge_target(find_target(str(run))),
    ):
        with pytest.raises(RunError) as caught:
            deed()
        assert caught.value.message == "error.evaluate.vocabulary"
        assert caught.value.values["id"] == len(tokenizer) - 1
        assert caught.value.values["rows"] == 400


def test_what_is_gone_is_named(run, held_out, tmp_path):
    (run / "recipe.yaml").rename(tmp_path / "recipe.yaml")
    with pytest.raises(RunError) as caught:
        find_target(str(run))
    assert caught.value.code == "E061"
    (tmp_path / "recipe.yaml").rename(run / "recipe.yaml")
    facts = json.loads((run / "run.json").read_text())
    facts["model"]["source"] = str(tmp_path / "no such base")
    (run / "run.json").write_text(json.dumps(facts))
    for deed in (
        lambda: evaluated(run, held_out, tmp_path / "out"),
        lambda: merge_target(find_target(str(run))),
    ):
        with pytest.raises(RunError) as caught:
            deed()
        assert caught.value.message == "error.merge.base_gone"


def test_dequantised_is_for_adapters_of_four_bits(run):
    for onto in ("dequantised", "measure"):
        with pytest.raises(RunError) as caught:
            merge_target(find_target(str(run)), onto=onto)
        assert caught.value.message == "error.merge.not_4_bit"
    assert list(run.glob("*merg*")) == []


def test_what_stands_at_the_target_is_kept_and_nothing_is_loaded(run, tmp_path, monkeypatch):
    from loracle.jobs.merge import deed

    monkeypatch.setattr(deed, "reference_of", None)
    theirs = tmp_path / "models" / "theirs"
    theirs.mkdir(parents=True)
    (theirs / "thesis.txt").write_text("years of work")
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"quant": {"type": "nf4", "double": True}}))
    for onto in ("base16", "measure"):
        with pytest.raises(RunError) as caught:
            merge_target(find_target(str(run)), onto=onto, out=theirs)
        assert caught.value.code == "E068"
    assert (theirs / "thesis.txt").read_text() == "years of work"
    assert [one.name for one in theirs.parent.iterdir()] == ["theirs"]


def test_places_that_cannot_be_written(run, held_out, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(MachineError) as caught:
        merge_target(find_target(str(run)), out=file / "merged")
    assert caught.value.code == "E054"
    with pytest.raises(MachineError) as caught:
        evaluated(run, held_out, file / "out")
    assert caught.value.code == "E054"
    assert file.read_text() == "mine"


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "E053"), (errno.EROFS, "E054")])
def test_faults_of_the_disk_have_codes(tmp_path, number, code):
    with pytest.raises(MachineError) as caught, writing(tmp_path):
        raise OSError(number, "refused")
    assert caught.value.code == code
    with pytest.raises(BrokenPipeError), writing(tmp_path):
        raise BrokenPipeError


def test_a_disk_that_fills_up_while_merging(run):
    """The room was there at the start; a limit on file sizes plays the disk that is full later."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(MachineError) as caught:
            merge_target(find_target(str(run)), verifies=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.message == "error.not_written"
    assert [one.name for one in run.iterdir() if "merg" in one.name] == []
    assert merge_target(find_target(str(run)), verifies=False).kept.result.changed == 14


def out_of_memory_from_call(monkeypatch, number):
    """Every forward pass of the model from this one on finds the card full."""
    from transformers import LlamaForCausalLM

    whole, calls = LlamaForCausalLM.forward, []

    def forward(self, *args, **kwargs):
        calls.append(1)
        if len(calls) >= number:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", forward)


@pytest.mark.parametrize("call", [1, 3])  # the unmerged model's, and one of the merged model's
def test_a_full_card_while_verifying_leaves_nothing(run, loracle, monkeypatch, call):
    before = sorted(one.name for one in run.iterdir())
    out_of_memory_from_call(monkeypatch, call)
    code, _, err = loracle("merge", run, "--prompts", 4)
    assert (code, "error[E055]" in err, "--no-verify" in err) == (2, True, True)
    assert sorted(one.name for one in run.iterdir()) == before
    code, _, err = loracle("merge", run, "--no-verify")
    assert code == 0, err


def test_a_full_card_while_evaluating_keeps_the_answers(run, loracle, monkeypatch):
    few = ("evaluate", run, "--max-items", 4, "--max-new-tokens", 2, "--batch", 2)
    out_of_memory_from_call(monkeypatch, 5)  # a batch takes three passes: losses, two tokens
    code, _, err = loracle(*few)
    assert (code, "error[E055]" in err, "smaller --batch" in err) == (2, True, True)
    assert not (run / "evaluation" / "report.json").exists()
    (kept,) = (run / "evaluation" / "items").glob("*.jsonl")
    assert len(kept.read_text().splitlines()) == 3  # a heading and the first batch, whole


def test_a_full_card_in_a_chat_is_one_error(run, loracle, monkeypatch):
    out_of_memory_from_call(monkeypatch, 1)
    code, _, err = loracle("chat", run, stdin="hello\n")
    assert (code, "error[E055]" in err, "hint:" in err) == (2, True, True)
