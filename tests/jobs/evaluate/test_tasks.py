"""`--tasks` through the real lm-eval, on a task of our own that needs no network."""

import json
import sys

import pytest
import torch

from loracle.errors import InputError, MissingExtra
from loracle.jobs.evaluate.subjects import Subject
from loracle.jobs.evaluate.tasks import check_tasks, run_tasks
from loracle.jobs.merge.merge import merge

CPU = torch.device("cpu")
CHOICES = ("red", "green", "blue", "grey")


def test_a_missing_extra_is_told_before_the_evaluation(run, loracle, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(MissingExtra):
        check_tasks(["arc_easy"])
    code, _, err = loracle("evaluate", run, "--tasks", "arc_easy", "--lang", "en")
    assert code == 2
    assert "pip install 'loracle[eval]'" in err
    assert not (run / "evaluation").exists()


@pytest.fixture
def task(tmp_path):
    """Which colour: the tuned model knows, the base does not."""
    data = tmp_path / "colours.jsonl"
    rows = [
        {"question": f"item {n} is {CHOICES[n % 4]}, which colour?", "answer": n % 4}
        for n in range(40, 52)
    ]
    data.write_text("".join(json.dumps(one) + "\n" for one in rows))
    path = tmp_path / "colours.yaml"
    path.write_text(
        f"""task: colours
dataset_path: json
dataset_kwargs:
  data_files:
    test: "{data}"
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: {list(CHOICES)}
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
    )
    return path


@pytest.mark.slow
class TestWithLmEval:
    @pytest.fixture(autouse=True)
    def offline(self, tmp_path, monkeypatch):
        pytest.importorskip("lm_eval")
        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def test_all_three_are_scored_and_every_item_is_kept(
        self, task, base, adapter, run, loracle, tmp_path
    ):
        merge(adapter, base, run / "merged-base16")
        code, out, err = loracle("evaluate", run, "--tasks", task, "--json")
        assert code == 0, err
        scores = json.loads(out)["tasks"]
        assert set(scores) == {"base", "adapter", "merged-base16"}
        assert scores["base"]["colours/acc"] < scores["adapter"]["colours/acc"]
        assert scores["adapter"] == scores["merged-base16"]
        for subject, found in scores.items():
            path = run / "evaluation" / "tasks" / f"{subject}-colours.jsonl"
            items = [json.loads(line) for line in path.read_text().splitlines()]
            assert [one["doc_id"] for one in items] == list(range(12))
            right = sum(one["acc"] for one in items) / 12
            assert right == pytest.approx(found["colours/acc"])
        code, out, _ = loracle("evaluate", run, "--tasks", task, "--limit", "3", "--lang", "en")
        assert code == 0
        assert "colours/acc" in out

    def test_one_tokenizer_for_all(self, task, base, adapter, tmp_path):
        """An adapter as PEFT saves it has no tokenizer of its own."""
        import shutil

        bare = tmp_path / "bare"
        bare.mkdir()
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(adapter / name, bare / name)
        subject = Subject(id="adapter", weights=str(base), adapter=bare, dtype="float32")
        found = run_tasks(
            [subject], [str(task)], tmp_path / "out", limit=4, device=CPU,
            tokenizer_source=str(base),
        )  # fmt: skip
        assert set(found["adapter"]) == {"colours/acc"}

    def test_an_unknown_task_is_told_with_its_neighbours(self):
        with pytest.raises(InputError) as caught:
            check_tasks(["arc_eazy"])
        assert "arc_easy" in caught.value.values["near"]
