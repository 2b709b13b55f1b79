"""`loracle plan` from the outside: answers, exit codes, languages, and every kind of bad input."""

import json
import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

GOLDEN = Path(__file__).parent / "golden"
MODEL = "Qwen/Qwen3-8B"
MONTHLY = ("--offers", "idc10000-3090,shenzhen-4090,idc10000-a100-40g")
JOB = ("plan", MODEL, "--tokens", "50M", "--engine", "formula")

RECIPE = """\
model: Qwen/Qwen2.5-7B
data:
  train: data.jsonl
training:
  seq_len: 1024
rent:
  offers: [idc10000-3090]
"""
ROWS = '{"prompt": "What is %d + %d?", "completion": "It is %d."}\n'


def write_job(folder, recipe=RECIPE):
    rows = "".join(ROWS % (n, n + 1, 2 * n + 1) for n in range(200))
    (folder / "data.jsonl").write_text(rows, "utf-8")
    (folder / "recipe.yaml").write_text(recipe, "utf-8")


def masked(screen):
    """The screen without its digits and bars: layout and words are what a golden file holds."""
    return re.sub(r"[█]+", "█", re.sub(r"\d", "0", screen))


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_golden_screen(command, language):
    answer = command(*JOB, *MONTHLY, "--budget", "3000CNY/month", "--lang", language)
    assert answer.code == 0
    path = GOLDEN / f"plan.{language}.txt"
    expected = re.sub(r" +", " ", masked(path.read_text("utf-8")))
    assert re.sub(r" +", " ", masked(answer.out)) == expected


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_columns_align_by_display_width(command, language):
    """The offer's id is the last column, so it starts at the same cell in every row."""
    answer = command(*JOB, *MONTHLY, "--lang", language, COLUMNS="200")
    rows = [
        line for line in answer.out.splitlines() if re.search(r" (idc10000|shenzhen)-\S+ *$", line)
    ]
    starts = {cell_len(re.sub(r"\S+ *$", "", line)) for line in rows}
    assert len(rows) == 3
    assert len(starts) == 1


def test_json_is_one_document_that_no_language_changes(command):
    english = command(*JOB, *MONTHLY, "--json")
    chinese = command(*JOB, *MONTHLY, "--json", "--lang", "zh-CN")
    assert json.loads(english.out)["schema"] == "loracle.plan/1"
    assert english.out == chinese.out
    assert english.err == ""


def test_quiet_is_one_line(command):
    answer = command(*JOB, *MONTHLY, "-q")
    assert len(answer.out.splitlines()) == 1
    assert re.fullmatch(r"RTX 3090  [\d.]+ h  ¥1,750\n", answer.out)
    assert answer.err == ""


def test_markdown(command):
    answer = command(*JOB, *MONTHLY, "--format", "md")
    assert any(line.startswith("| ") and "RTX 3090" in line for line in answer.out.splitlines())


def test_no_colour_codes_when_not_a_terminal_or_told_so(command):
    assert "\x1b" not in command(*JOB, *MONTHLY).out
    assert "\x1b" not in command(*JOB, *MONTHLY, NO_COLOR="1", TERM="xterm-256color").out


def test_narrow_terminals_lose_columns_and_are_told(command):
    answer = command(*JOB, *MONTHLY, COLUMNS="80")
    assert "columns left out" in answer.out
    table = [
        line for line in answer.out.splitlines() if re.search(r"RTX 3090  +(fits|tight)", line)
    ]
    assert table
    assert all(cell_len(line.rstrip()) <= 80 for line in table)


def test_a_recipe_with_data_and_its_outputs(command, tmp_path):
    write_job(tmp_path)
    answer = command("plan", "recipe.yaml", "--engine", "formula",
                     "--save", "plan.json", "-o", "out.yaml")  # fmt: skip
    assert answer.code == 0
    assert json.loads((tmp_path / "plan.json").read_text("utf-8"))["data"]["num_samples"] == 200
    again = command("plan", "out.yaml", "--engine", "formula", "-q")
    assert (again.code, again.err) == (0, "")


def test_flags_win_over_the_recipe(command, tmp_path):
    write_job(tmp_path)
    answer = command("plan", "recipe.yaml", "--engine", "formula", "--json",
                     "--seq-len", "512", "--set", "lora.rank=8", "--method", "lora")  # fmt: skip
    setup = json.loads(answer.out)["setup"]
    assert (setup["seq_len"], setup["lora"]["rank"], setup["method"]) == (512, 8, "lora")


@pytest.mark.parametrize("topic", ["memory", "speed", "cost"])
def test_explanations(command, topic):
    answer = command(*JOB, *MONTHLY, "--explain", topic)
    assert answer.code == 0
    assert "%" in answer.out
    assert not re.search(r"^\s+(memory|speed|term|phase)\.\w+", answer.out, re.MULTILINE)


def test_why(command):
    answer = command(*JOB, *MONTHLY, "--why", "a100-40gb-pcie")
    assert answer.code == 0
    assert re.search(r"faster \(.*\), ¥1,050 dearer than RTX 3090 \(¥2,800\)", answer.out)


def test_exit_1_where_the_answer_is_no(command):
    over = command(*JOB, *MONTHLY, "--budget", "100CNY/month", "-q")
    late = command(*JOB, *MONTHLY, "--deadline", "6min", "-q")
    large = command("plan", "Qwen/Qwen3-235B-A22B", "--tokens", "1M", "--engine", "formula",
                    "--gpu", "3090", "--set", "rent.max_gpus=1", "-q")  # fmt: skip
    assert (over.code, late.code, large.code) == (1, 1, 1)
    assert over.out.startswith("Nothing stays in the budget")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("plan",), "E011", "no recipe and no model"),
        (("plan", "gone.yaml"), "E013", "gone.yaml"),
        (("plan", "folder.yaml"), "E013", "folder"),
        (("plan", "broken.yaml"), "E012", "line 2"),
        (("plan", "gbk.yaml"), "E012", "UTF-8"),
        (("plan", "typo.yaml"), "E012", "line 3: unknown key `lora.rnak`, did you mean `lora."),
        (("plan", "huge.yaml"), "E012", "at most"),
        (("plan", "nodata.yaml"), "E013", "gone.jsonl"),
        (("plan", MODEL, "--data", "empty.jsonl"), "E024", "empty.jsonl"),
        (("plan", MODEL, "--data", "broken.jsonl"), "E020", "broken.jsonl"),
        (("plan", MODEL, "--tokens", "lots"), "E011", "lots"),
        (("plan", MODEL, "--tokens", "0"), "E011", "0"),
        (("plan", MODEL, "--set", "lora.rank"), "E011", "KEY=VALUE"),
        (("plan", MODEL, "--set", "lora.rank=0"), "E012", "must be above 0"),
        (("plan", MODEL, "--set", "training.epochs=.nan"), "E012", "no number"),
        (("plan", MODEL, "--method", "dora"), "E012", "qlora | lora | full"),
        (("plan", MODEL, "--gpu", "RTX 4099"), "E031", "4099"),
        (("plan", MODEL, "--offers", "idc-3090"), "E034", "idc10000-3090"),
        (("plan", MODEL, "--budget", "3000"), "E012", "3000"),
        (("plan", MODEL, "--budget", "5JPY"), "E017", "JPY"),
        (("plan", MODEL, "--currency", "jpy"), "E017", "JPY"),
        (("plan", MODEL, "--deadline", "soon"), "E012", "soon"),
        (("plan", MODEL, "--engine", "magic"), "E011", "auto, formula, dryrun"),
        (("plan", MODEL, "--format", "xml"), "E011", "human, md, json"),
        (("plan", MODEL, "--why", "l40s"), "E032", "RTX 3090"),
        (("plan", MODEL, "--save", "no/such/folder/plan.json"), "E013", "plan.json"),
        (("plan", "microsoft/Phi-3-mini-4k-instruct", "--set", "lora.targets=[q_proj]"), "E014",
         "qkv_proj, o_proj"),
        (("plan", "nobody/no-such-model-8B"), "E03", "no-such-model"),
        (("plan", "./nowhere/config.json"), "E032", "nowhere"),
    ],
)  # fmt: skip
def test_bad_input(command, tmp_path, arguments, code, says):
    """One error with its code, nothing on stdout, exit 2, and no file half-written."""
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "broken.yaml").write_text("model: a\nlora: [", "utf-8")
    (tmp_path / "gbk.yaml").write_bytes("model: a # 模型".encode("gbk"))
    (tmp_path / "typo.yaml").write_text("model: a\nlora:\n  rnak: 8\n", "utf-8")
    (tmp_path / "huge.yaml").write_text("model: a\ntraining: {epochs: 1e300}\n", "utf-8")
    (tmp_path / "nodata.yaml").write_text(f"model: {MODEL}\ndata: {{train: gone.jsonl}}\n", "utf-8")
    (tmp_path / "empty.jsonl").write_text("", "utf-8")
    (tmp_path / "broken.jsonl").write_text('{"prompt": "a", "completion": \n', "utf-8")
    before = sorted(tmp_path.iterdir())
    engine = () if "--engine" in arguments else ("--engine", "formula")
    answer = command(*arguments, "--offline", *engine)
    assert answer.code == 2, answer
    assert answer.out == ""
    assert f"error[{code}" in answer.err
    assert says in answer.err
    assert "Traceback" not in answer.err
    assert sorted(tmp_path.iterdir()) == before


def test_errors_in_json_mode_are_a_document(command):
    answer = command("plan", MODEL, "--gpu", "RTX 4099", "--json")
    assert answer.code == 2
    assert json.loads(answer.out)["code"] == "E031"


def test_errors_in_chinese(command, tmp_path):
    (tmp_path / "r.yaml").write_text("model: a\nlora:\n  rnak: 8\n", "utf-8")
    answer = command("plan", "r.yaml", "--lang", "zh-CN")
    assert "第 3 行：没有 `lora.rnak` 这个键，是否想写 `lora.rank`？" in answer.err


def test_an_offline_plan_loads_neither_torch_nor_a_client(command, tmp_path):
    """Section 7: they take seconds to import, and a plan needs none of them."""
    script = (
        "import sys\n"
        "from loracle.cli.app import main\n"
        f"sys.argv = ['loracle', *{JOB!r}, '--json']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'transformers', 'trl', 'peft', 'datasets', 'httpx', 'requests',\n"
        "         'huggingface_hub', 'scipy', 'numpy'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)\n"
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stderr.strip() == "[]"


SMALL = ("--set", "training.seq_len=512", "--set", "training.micro_batch=1")


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """One cache for the tests below: they ask for the same trace."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


def test_the_dry_run_speaks_for_the_choice(command, traces):
    pytest.importorskip("torch")
    job = ("plan", "HuggingFaceTB/SmolLM2-135M", "--tokens", "1M", *SMALL,
           "--offers", "idc10000-3090", "--json")  # fmt: skip
    document = json.loads(command(*job, "--engine", "dryrun", **traces).out)
    assert document["engine"] == "dryrun"
    assert document["candidates"][0]["memory"]["engine"] == "dryrun"
    formula = json.loads(command(*job, "--engine", "formula").out)
    assert formula["candidates"][0]["memory"]["engine"] == "formula"


def test_explain_memory_draws_the_step(command, traces, tmp_path):
    pytest.importorskip("torch")
    job = ("explain-memory", "HuggingFaceTB/SmolLM2-135M", "--gpu", "3090", *SMALL)
    answer = command(*job, "--svg", "memory.svg", **traces)
    assert answer.code == 0
    assert "█" in answer.out
    assert "quantised weight" in answer.out
    assert (tmp_path / "memory.svg").read_text("utf-8").startswith("<svg")
    document = json.loads(command(*job, "--json", **traces).out)
    assert document["engine"] == "dryrun"
    assert max(document["points_bytes"]) == pytest.approx(
        document["memory"]["allocated_bytes"]["likely"], rel=0.02
    )
