"""A tiny real base with a tokenizer, adapters trained on it, and run folders around them."""

import io
import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
COLOURS = ("red", "green", "blue", "grey")
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def rows(count, start=0):
    """Questions whose answer is the colour that they name."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"item {n} is {COLOURS[n % 4]}, which colour?"},
                {"role": "assistant", "content": COLOURS[n % 4]},
            ]
        }
        for n in range(start, start + count)
    ]


def write_rows(path, values):
    path.write_text("".join(json.dumps(one) + "\n" for one in values))
    return path


def save_tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<pad>", "<|im_start|>", "<|im_end|>"]
    texts = [json.dumps(one) for one in rows(60)]
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<pad>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


def tune(base, folder, *, steps, seed=1):
    """An adapter trained by plain PEFT on the colour rows."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from loracle.catalog.datasets import read_dataset
    from loracle.jobs.train.templates import encode

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tuned = get_peft_model(
        model, LoraConfig(r=8, lora_alpha=16, target_modules=LINEAR, task_type="CAUSAL_LM")
    )
    path = write_rows(folder.parent / f"{folder.name}.jsonl", rows(40))
    encoded = [encode(tokenizer, one) for one in read_dataset(path).samples]
    trained = [one for one in tuned.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    width = max(len(one.input_ids) for one in encoded)
    ids = torch.tensor([one.input_ids + [0] * (width - len(one.input_ids)) for one in encoded])
    labels = torch.tensor([one.labels + [-100] * (width - len(one.labels)) for one in encoded])
    for _ in range(steps):
        tuned(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tuned.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_run(folder, base, adapter, *, data, train=None, quant=None, method="lora"):
    """A finished run folder, as training leaves it."""
    import shutil

    import yaml

    from loracle.jobs.train.facts import fingerprint_model

    folder.mkdir(parents=True)
    document = {
        "model": str(base),
        "method": method,
        "data": {"train": str(train or data), "eval": str(data)},
        "evaluation": {"max_new_tokens": 8, "batch": 10, "margin": 0.1},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(document))
    facts = {
        "schema": "loracle.run/1",
        "model": {"ref": str(base), "source": str(base), "hash": fingerprint_model(Path(base))},
        "quant": quant,
        "setup": {"base_dtype": "bfloat16"},
    }
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "status.json").write_text('{"state": "finished", "step": 1}')
    if adapter is not None:
        shutil.copytree(adapter, folder / "adapter")
    return folder


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("base") / "tiny"
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=2, pad_token_id=0,
        initializer_range=0.4,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def adapter(base, tmp_path_factory):
    return tune(base, tmp_path_factory.mktemp("adapter") / "adapter", steps=60)


@pytest.fixture(scope="session")
def held_out(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("data") / "held_out.jsonl", rows(30, start=40))


@pytest.fixture
def run(base, adapter, held_out, tmp_path):
    train = write_rows(tmp_path / "train.jsonl", rows(40))
    return make_run(tmp_path / "runs" / "r1", base, adapter, data=held_out, train=train)


@pytest.fixture
def loracle(monkeypatch, capsys):
    """The command line in this process: (exit code, stdout, stderr)."""
    from loracle.cli.app import main

    def call(*arguments, stdin=""):
        monkeypatch.setattr("sys.argv", ["loracle", *map(str, arguments)])
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return call
