"""Counts against the libraries themselves: tokenizers, transformers' rendering, TRL's packing."""

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loracle.catalog.datasets import (
    CharacterCounter,
    count_data,
    data_facts,
    find_counter,
    read_dataset,
)
from loracle.catalog.datasets.facts import percentiles
from loracle.catalog.datasets.packing import packed_sequences, padding_share
from loracle.catalog.datasets.tokens import FEATURES, TokenizerCounter, text_features
from loracle.errors import DataError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRICT = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim }}{{ eos_token }}"
    "{% endgeneration %}{% else %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% endif %}"
    "{% endfor %}"
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A byte-level BPE tokenizer trained on this file, saved as a model folder holds it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([Path(__file__).read_text("utf-8")], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


def rows(path, *values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def chat(*contents):
    roles = ["user", "assistant"]
    return {"messages": [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]}


@pytest.mark.parametrize("template", [CHATML, STRICT])
def test_rendering_is_that_of_transformers(model_folder, tmp_path, template):
    transformers = pytest.importorskip("transformers")
    (model_folder / "chat_template.jinja").write_text(template)
    reference = transformers.AutoTokenizer.from_pretrained(model_folder)
    path = rows(tmp_path / "a.jsonl", chat("hello", " world "), chat("你好", "a\nb", "c", "d"))
    data = read_dataset(path)
    counter = find_counter(model_folder)
    expected = [
        len(reference.apply_chat_template([t.as_message() for t in s.messages])["input_ids"])
        for s in data.samples
    ]
    assert [one.likely for one in counter.count(data.samples)] == expected
    (model_folder / "chat_template.jinja").write_text(CHATML)


def test_a_template_that_refuses_a_row_names_it(model_folder, tmp_path):
    (model_folder / "chat_template.jinja").write_text(STRICT)
    row = {"messages": [{"role": "system", "content": "s"}, *chat("a", "b")["messages"]]}
    data = read_dataset(rows(tmp_path / "a.jsonl", chat("a", "b"), row))
    with pytest.raises(DataError) as caught:
        find_counter(model_folder).count(data.samples)
    assert (caught.value.code, caught.value.values["row"]) == ("E026", 2)
    (model_folder / "chat_template.jinja").write_text(CHATML)


def test_prompt_completion_and_text_get_bos_and_eos(model_folder, tmp_path):
    reference = TokenizerCounter.from_folder(model_folder).tokenizer
    plain = len(reference.encode("prompt answer", add_special_tokens=False).ids)
    for row in ({"prompt": "prompt ", "completion": "answer"}, {"text": "prompt answer"}):
        data = read_dataset(rows(tmp_path / "a.jsonl", row))
        assert find_counter(model_folder).count(data.samples)[0].likely == plain + 2


def test_facts_of_a_small_set(model_folder, tmp_path):
    path = rows(tmp_path / "a.jsonl", *[{"text": "a" * n} for n in (1, 2, 3)])
    lengths = [
        find_counter(model_folder).count(read_dataset(path).samples)[i].likely for i in range(3)
    ]
    facts = data_facts(path, seq_len=int(lengths[1]), model=model_folder)
    assert facts.counted_by == "tokenizer"
    assert facts.tokens.likely == facts.tokens.low == sum(lengths)
    assert facts.cut_share == pytest.approx(sum(one > lengths[1] for one in lengths) / 3)
    assert facts.tokens_kept.likely == sum(min(one, lengths[1]) for one in lengths)
    assert facts.length_percentiles[100] == max(lengths)


def test_rows_whose_prompt_fills_the_sequence_are_counted(model_folder, tmp_path):
    long = " ".join(["word"] * 300)
    data = read_dataset(
        rows(tmp_path / "a.jsonl", chat(long, "b"), chat("a", long), chat("a", "b"))
    )
    counted = count_data(data, find_counter(model_folder), seq_len=64)
    assert counted.facts.cut_share == pytest.approx(2 / 3)
    assert counted.unlabelled_rows == 1


def test_a_broken_tokenizer_is_one_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError) as caught:
        find_counter(tmp_path)
    assert caught.value.code == "E026"


def test_the_hub_cache_is_looked_into(model_folder, tmp_path, monkeypatch):
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(model_folder)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert find_counter("org/name").counted_by == "tokenizer"
    assert find_counter("org/other").counted_by == "bytes"


def test_features_of_a_text():
    found = dict(zip(FEATURES, text_features("Ab c, 12!\n  你好 é"), strict=True))
    assert found == {
        "words": 2, "letters": 3, "digits": 2, "punct_runs": 2, "punct": 2, "newlines": 1,
        "indents": 1, "cjk": 2, "other": 2,
    }  # fmt: skip


# Tokens that Qwen's, DeepSeek's, Mistral's (tekken, then v1) and SmolLM2's own tokenizers make of
# this text; none of the pieces that the rates were fitted on holds it.
CHINESE = "大模型微调之前，先弄清楚显存够不够、要花多少钱、需要多长时间。" * 40


@pytest.mark.parametrize(
    ("vocab_size", "tokens"),
    [(151936, 880), (129280, 800), (131072, 1120), (32000, 1401), (49152, 2240)],
)
def test_chinese_lies_inside_the_range_of_its_family(tmp_path, vocab_size, tokens):
    data = read_dataset(rows(tmp_path / "a.jsonl", {"text": CHINESE}))
    (one,) = CharacterCounter(vocab_size).count(data.samples)
    assert one.low <= tokens <= one.high
    (unknown,) = CharacterCounter().count(data.samples)
    assert unknown.low <= tokens <= unknown.high


def test_large_sets_are_sampled_with_a_range(model_folder, tmp_path, monkeypatch):
    from loracle.catalog.datasets import facts

    random = Random(3)
    words = ["alpha", "beta", "γδ", "一二三", "x=1;"]
    values = [
        {"text": " ".join(random.choices(words, k=random.randint(5, 80)))} for _ in range(2000)
    ]
    data = read_dataset(rows(tmp_path / "a.jsonl", *values))
    counter = find_counter(model_folder)
    whole = count_data(data, counter, seq_len=512)
    monkeypatch.setattr(facts, "COUNTED_CHARACTERS", 50_000)
    sampled = count_data(data, counter, seq_len=512)
    assert whole.counted_rows == 2000
    assert 100 < sampled.counted_rows < 700
    assert sampled.facts.tokens.low <= whole.facts.tokens.likely <= sampled.facts.tokens.high
    assert sampled.facts.tokens.likely == pytest.approx(whole.facts.tokens.likely, rel=0.02)


def test_large_files_are_sampled_by_place(model_folder, tmp_path, monkeypatch):
    """Rows get longer towards the end; the estimate still covers the whole count."""
    from loracle.catalog.datasets import is_large, large, sample_large

    random = Random(5)
    texts = [" ".join(["word"] * random.randint(1, 3 + index // 150)) for index in range(9000)]
    path = rows(tmp_path / "a.jsonl", *[{"text": text} for text in texts])
    whole = data_facts(path, seq_len=64, model=model_folder)
    assert not is_large(path)
    monkeypatch.setattr(large, "LARGE_BYTES", 100_000)
    monkeypatch.setattr(large, "_WINDOWS", 60)
    monkeypatch.setattr(large, "_WINDOW_BYTES", 4000)
    sample = sample_large(path)
    assert 0.1 < sample.read_share < 0.5
    assert sample.rows.low <= 9000 <= sample.rows.high
    assert sample.rows.likely == pytest.approx(9000, rel=0.05)
    sampled = data_facts(path, seq_len=64, model=model_folder)
    assert sampled.tokens.low <= whole.tokens.likely <= sampled.tokens.high
    assert sampled.tokens.likely == pytest.approx(whole.tokens.likely, rel=0.05)
    assert sampled.packed_sequences == pytest.approx(whole.packed_sequences, rel=0.05)
    path.write_text(path.read_text() + "{'text': 1}\n" * 2000)
    with pytest.raises(DataError) as caught:
        sample_large(path)
    assert caught.value.values["reasons"].keys() == {"single_quotes"}


def test_packing_is_that_of_trl():
    datasets = pytest.importorskip("datasets")
    data_utils = pytest.importorskip("trl.data_utils")
    random = Random(1)
    lengths = [min(3000, int(random.lognormvariate(5, 1)) + 1) for _ in range(2500)]
    rows = datasets.Dataset.from_dict({"input_ids": [[0] * length for length in lengths]})
    packed = data_utils.pack_dataset(rows, 1024, "bfd")
    assert packed_sequences(lengths, 1024) == len(packed)


def test_packing_by_hand():
    assert packed_sequences([6, 4, 5, 5, 3, 7], 10) == 3  # 7+3, 6+4, 5+5
    assert packed_sequences([12, 1], 10) == 2  # 12 is cut to 10 and fills a sequence


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=300), st.integers(8, 256))
def test_packing_never_holds_more_than_fits(lengths, seq_len):
    kept = sum(min(one, seq_len) for one in lengths)
    packed = packed_sequences(lengths, seq_len)
    assert -(-kept // seq_len) <= packed <= len(lengths)


def test_padding_share_by_hand():
    assert padding_share([10, 10, 10], 10, batch_rows=3) == 0
    assert padding_share([2, 10], 10, batch_rows=2) == pytest.approx(8 / 20)
    assert padding_share([2, 10], 10, batch_rows=1) == 0


def test_percentiles_are_nearest_rank():
    assert percentiles(list(range(1, 101))) == {50: 50, 90: 90, 95: 95, 99: 99, 100: 100}
    assert percentiles([7]) == dict.fromkeys((50, 90, 95, 99, 100), 7)
