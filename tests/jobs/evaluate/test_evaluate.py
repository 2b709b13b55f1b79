"""A whole evaluation on a tiny model that really learned: verdicts, sameness, resume, faults."""

import json
import shutil

import pytest
import torch

from loracle.errors import DataError, InputError, RunError
from loracle.jobs.evaluate import evaluate as module
from loracle.jobs.evaluate.evaluate import evaluate
from loracle.jobs.evaluate.result import Spec
from loracle.jobs.evaluate.subjects import Subject
from loracle.jobs.evaluate.targets import check_base, find_target, subjects_of
from loracle.jobs.merge.merge import merge

CPU = torch.device("cpu")


def spec(held_out, **changes):
    return Spec(
        **{"data": str(held_out), "max_new_tokens": 8, "batch": 10, "margin": 0.1} | changes
    )


def judged(target, held_out, folder, *, merged=(), **changes):
    subjects = subjects_of(target, dtype="float32", merged=list(merged))
    return evaluate(
        subjects, spec(held_out, **changes), folder, device=CPU, tokenizer_source=target.tokenizer
    )


def test_tuned_beats_base_and_merged_is_the_adapter(run, base, adapter, held_out, tmp_path):
    merge(adapter, base, run / "merged-base16")
    target = find_target(str(run))
    found = judged(target, held_out, tmp_path / "out", merged=target.merged_folders())
    assert found.metrics == ("accuracy", "exact")
    tuned = found.comparisons["base>adapter"]["accuracy"]
    assert (tuned.verdict, tuned.mean_a, tuned.num_items) == ("better", 0.0, 30)
    assert tuned.mean_b > 0.7
    assert found.comparisons["base>adapter"]["loss"].verdict == "better"
    same = found.equivalences["merged-base16"]
    assert same.fidelity is not None
    assert same.fidelity.kl < 1e-3
    assert same.verdict == "equivalent"
    assert [hint.id for hint in found.hints] == [
        "evaluate.advice.better",
        "evaluate.advice.deploy",
    ]
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["schema"] == "loracle.evaluation/1"
    assert document["equivalence"]["merged-base16"]["verdict"] == "equivalent"


def test_another_model_is_called_different(run, base, held_out, tmp_path):
    shutil.copytree(base, tmp_path / "merged-wrong")  # the base itself: nothing was merged
    target = find_target(str(run))
    found = judged(target, held_out, tmp_path / "out", merged=[tmp_path / "merged-wrong"])
    assert found.equivalences["merged"].verdict == "different"
    assert "evaluate.advice.merge_differs" in [hint.id for hint in found.hints]


def test_an_interrupted_evaluation_goes_on(run, held_out, tmp_path, monkeypatch):
    target = find_target(str(run))
    subjects = subjects_of(target, dtype="float32", merged=[])

    def interrupt(subject, done, total):
        if subject == "adapter" and done >= 10:
            raise KeyboardInterrupt

    arguments = (subjects, spec(held_out), tmp_path / "out")
    options = {"device": CPU, "tokenizer_source": target.tokenizer}
    with pytest.raises(KeyboardInterrupt):
        evaluate(*arguments, **options, progress=interrupt)
    seen = []
    evaluate(
        *arguments, **options, progress=lambda subject, done, total: seen.append((subject, done))
    )
    assert seen == [("adapter", 20), ("adapter", 30)]
    for path in (tmp_path / "out" / "items").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert sorted(one["row"] for one in lines[1:]) == list(range(1, 31))
    monkeypatch.setattr(module, "loaded", None)  # a third run needs no model at all
    again = evaluate(*arguments, **options)
    assert again.comparisons["base>adapter"]["accuracy"].verdict == "better"


def test_a_torn_last_line_is_answered_again(run, held_out, tmp_path):
    target = find_target(str(run))
    first = judged(target, held_out, tmp_path / "out")
    (path,) = (tmp_path / "out" / "items").glob("adapter-*.jsonl")
    whole = path.read_text()
    path.write_text(whole[:-25])
    second = judged(target, held_out, tmp_path / "out")
    assert second.scores["adapter"].texts == first.scores["adapter"].texts
    assert second.scores["adapter"].nll == pytest.approx(first.scores["adapter"].nll, rel=1e-6)


def test_other_decoding_starts_other_files(run, held_out, tmp_path):
    target = find_target(str(run))
    judged(target, held_out, tmp_path / "out", max_items=5)
    judged(target, held_out, tmp_path / "out", max_items=5, max_new_tokens=4)
    assert len(list((tmp_path / "out" / "items").glob("adapter-*.jsonl"))) == 2


def test_loss_only_and_plain_text(run, tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": f"item {n} is red"}) + "\n" for n in range(12)))
    target = find_target(str(run))
    found = judged(target, path, tmp_path / "out")
    assert (found.metric, found.metrics) == ("loss", ())
    assert set(found.comparisons["base>adapter"]) == {"loss"}
    assert found.scores["base"].texts == (None,) * 12


def test_rows_whose_answer_is_cut_away_are_counted(run, held_out, tmp_path):
    rows = [json.loads(line) for line in held_out.read_text().splitlines()]
    for row in rows[:4]:
        row["messages"][0]["content"] = "word " * 150 + row["messages"][0]["content"]
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = find_target(str(run))
    found = judged(target, path, tmp_path / "out", max_tokens=100)
    assert (found.unscored, len(found.items)) == (4, 26)
    assert all(score > 0 for score in found.scores["base"].nll)
    with pytest.raises(DataError) as caught:
        judged(target, path, tmp_path / "out", max_tokens=5)
    assert caught.value.code == "E027"


def test_duplicates_are_found(run, held_out, tmp_path):
    target = find_target(str(run))
    found = judged(target, held_out, tmp_path / "out", max_items=5, train_data=str(held_out))
    assert found.duplicates is not None
    assert found.duplicates.same_row == (1, 2, 3, 4, 5)


def test_four_bit_that_costs_more_than_the_margin_is_told(run, base, adapter, held_out, tmp_path):
    """The weak adapter stands for a QLoRA run, the good one for bf16 LoRA."""
    subjects = [
        Subject(id="base", weights=str(base), dtype="float32"),
        Subject(id="adapter", weights=str(base), dtype="float32"),
        Subject(id="lora", weights=str(base), adapter=adapter, dtype="float32"),
    ]
    found = evaluate(
        subjects, spec(held_out), tmp_path / "out", device=CPU, tokenizer_source=str(base)
    )
    assert found.comparisons["lora>adapter"]["accuracy"].verdict == "worse"
    (hint,) = [one for one in found.hints if one.id == "evaluate.advice.use_bf16"]
    assert hint.values["difference"] > 0.7


def test_a_fully_tuned_model_is_held_against_its_base(run, base, adapter, held_out, tmp_path):
    merge(adapter, base, run / "model")
    (run / "model" / "loracle-merge.json").unlink()
    shutil.rmtree(run / "adapter")
    target = find_target(str(run))
    subjects = subjects_of(target, dtype="float32", merged=[])
    assert [one.id for one in subjects] == ["base", "tuned"]
    found = judged(target, held_out, tmp_path / "out")
    assert found.comparisons["base>tuned"]["accuracy"].verdict == "better"
    assert found.hints[0].id == "evaluate.advice.better"


def test_every_subject_ends_at_the_same_tokens(base, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(base, other)
    (other / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    bare = tmp_path / "bare"
    shutil.copytree(base, bare)
    (bare / "generation_config.json").unlink()
    subjects = [Subject(id=str(one), weights=str(one)) for one in (base, other, bare)]
    assert module.generation_stops(subjects) == [2, 7]


class TestFaults:
    def test_broken_adapter(self, run):
        weights = run / "adapter" / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-50])
        with pytest.raises(RunError) as caught:
            find_target(str(run))
        assert caught.value.code == "E077"

    def test_unfinished_run(self, run):
        shutil.rmtree(run / "adapter")
        with pytest.raises(RunError) as caught:
            find_target(str(run))
        assert (caught.value.code, caught.value.message) == ("E076", "error.merge.not_finished")

    def test_no_such_run(self, tmp_path):
        with pytest.raises(InputError) as caught:
            find_target("nothing", parent=tmp_path)
        assert caught.value.code == "E013"

    def test_another_base_of_the_same_shape(self, run, base, tmp_path):
        other = tmp_path / "other"
        shutil.copytree(base, other)
        weights = bytearray((other / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (other / "model.safetensors").write_bytes(weights)
        target = find_target(str(run))
        check_base(target, base)
        with pytest.raises(RunError) as caught:
            check_base(target, other)
        assert (caught.value.code, caught.value.message) == ("E079", "error.merge.other_base")

    def test_a_base_of_another_shape(self, adapter, held_out, tmp_path):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(tmp_path / "small")
        target = find_target(str(adapter), base=str(tmp_path / "small"))
        with pytest.raises(RunError) as caught:
            judged(target, held_out, tmp_path / "out")
        assert (caught.value.code, caught.value.message) == ("E079", "error.evaluate.adapter")

    def test_missing_held_out_set(self, run, tmp_path):
        with pytest.raises(InputError) as caught:
            judged(find_target(str(run)), tmp_path / "none.jsonl", tmp_path / "out")
        assert caught.value.code == "E013"


def test_prompts_other_than_in_training_are_a_warning(run, loracle):
    from loracle.catalog.datasets import read_dataset
    from loracle.jobs.train.model import load_tokenizer
    from loracle.jobs.train.templates import prompts_hash

    facts = json.loads((run / "run.json").read_text())
    samples = read_dataset(run.parents[1] / "train.jsonl").samples
    facts["prompts_hash"] = prompts_hash(load_tokenizer(str(run / "adapter")), samples)
    (run / "run.json").write_text(json.dumps(facts))
    few = ("--max-items", 2, "--max-new-tokens", 2)
    _, _, errors = loracle("evaluate", run, *few)
    assert "other prompts than training" not in errors

    template = run / "adapter" / "chat_template.jinja"
    template.write_text(template.read_text().replace("assistant", "bot"))
    _, _, errors = loracle("evaluate", run, *few)
    assert "other prompts than training" in errors
    assert "no chat template" not in errors

    template.unlink()
    _, out, _ = loracle("evaluate", run, *few, "--json")
    warned = [one["id"] for one in json.loads(out)["warnings"]]
    assert warned == ["evaluate.other_prompts", "evaluate.no_template"]
