import pytest

from loracle.errors import DataError
from loracle.jobs.train.data import DataSpec, prepare_data

EOS = 2


def prepare(tiny, path, tmp_path, **spec):
    return prepare_data(
        DataSpec(source=str(path), **spec), tiny.make_tokenizer(), {EOS}, cache=tmp_path / "cache"
    )


def row(question, answer):
    return {
        "messages": [
            {"role": "user", "content": question}, {"role": "assistant", "content": answer},
        ]
    }  # fmt: skip


def test_every_sample_is_counted(tiny, rows_file, tmp_path):
    """Bytes are tokens: a question takes 8 more than its text, an answer 13 (11 before it)."""
    path = rows_file([row("aa", "bbb"), row("a" * 60, "b"), row("aa", "b" * 70)])
    counts = prepare(tiny, path, tmp_path, seq_len=64).counts
    assert counts.rows == 3
    assert counts.unlabelled == 1  # 8 + 60 fill all 64
    assert counts.cut == 2
    assert counts.samples == 2
    assert counts.longest == 64
    assert counts.tokens == (8 + 2 + 13 + 3) + 64
    assert counts.label_tokens == (3 + 1) + (64 - (8 + 2 + 11))


def test_nothing_left_to_learn_is_an_error_not_a_loss_of_zero(tiny, rows_file, tmp_path):
    path = rows_file([row("a" * 100, "b"), row("a" * 90, "b")])
    with pytest.raises(DataError) as raised:
        prepare(tiny, path, tmp_path, seq_len=64)
    assert raised.value.code == "E027"
    assert raised.value.values["samples"] == 2


def test_a_cut_sample_is_not_counted_as_one_that_never_ends(tiny, rows_file, tmp_path):
    path = rows_file([row("aa", "bbb"), row("aa", "b" * 70)])
    assert prepare(tiny, path, tmp_path, seq_len=64).counts.unended == 0


def test_bad_rows_stop_the_run_with_their_lines(tiny, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"messages": 3,}\n')
    with pytest.raises(DataError) as raised:
        prepare(tiny, path, tmp_path, seq_len=64)
    assert [problem.values["line"] for problem in raised.value.problems] == [1, 2]


def test_a_second_preparation_reads_the_cache(tiny, rows_file, tmp_path, monkeypatch):
    path = rows_file(tiny.make_rows(30))
    first = prepare(tiny, path, tmp_path, seq_len=64)
    monkeypatch.setattr("loracle.jobs.train.data.encode", None)  # would fail if it were called
    second = prepare(tiny, path, tmp_path, seq_len=64)
    assert second.counts == first.counts
    assert second.dataset[:] == first.dataset[:]
    assert second.dataset.cache_files[0]["filename"].endswith(".arrow")


@pytest.mark.parametrize("change", ["data", "template", "seq_len", "train_on", "seed", "packing"])
def test_the_cache_is_not_used_when_anything_that_counts_has_changed(
    tiny, rows_file, tmp_path, change
):
    def stored():
        return sorted(path.name for path in (tmp_path / "cache").iterdir())

    path = rows_file(tiny.make_rows(8))
    prepare(tiny, path, tmp_path, seq_len=64)
    before = stored()
    if change == "data":
        rows_file(tiny.make_rows(8, seed=5))
    spec = {"seq_len": 65, "train_on": "everything", "seed": 1, "packing": False}
    changed = {change: spec[change]} if change in spec else {}
    tokenizer = tiny.make_tokenizer()
    if change == "template":
        tokenizer.chat_template += "{# #}"
    prepare_data(
        DataSpec(source=str(path), **{"seq_len": 64} | changed), tokenizer, {EOS},
        cache=tmp_path / "cache",
    )  # fmt: skip
    assert len(stored()) == len(before) + 1


def test_workers_make_the_same_rows(tiny, rows_file, tmp_path):
    path = rows_file(tiny.make_rows(60))
    spec = DataSpec(source=str(path), seq_len=64)
    one = prepare_data(spec, tiny.make_tokenizer(), {EOS}, cache=tmp_path / "a", num_workers=1)
    two = prepare_data(spec, tiny.make_tokenizer(), {EOS}, cache=tmp_path / "b", num_workers=2)
    assert one.dataset[:] == two.dataset[:]
    assert one.counts == two.counts


def test_packing_loses_no_token_and_crosses_no_length(tiny, rows_file, tmp_path):
    path = rows_file(tiny.make_rows(50))
    packed = prepare(tiny, path, tmp_path, seq_len=128)
    plain = prepare(tiny, path, tmp_path, seq_len=128, packing=False)
    assert packed.counts.tokens == plain.counts.tokens
    assert packed.counts.sequences < plain.counts.sequences == 50
    documents = sorted(
        tuple(ids[start : start + length])
        for ids, lengths in zip(
            packed.dataset["input_ids"], packed.dataset["seq_lengths"], strict=True
        )
        for start, length in zip(_starts(lengths), lengths, strict=True)
    )
    assert documents == sorted(tuple(ids) for ids in plain.dataset["input_ids"])
    assert max(len(ids) for ids in packed.dataset["input_ids"]) <= 128


def _starts(lengths):
    return [sum(lengths[:index]) for index in range(len(lengths))]


def test_unpacked_rows_hold_every_document_once_in_a_repeatable_order():
    from datasets import Dataset

    from loracle.jobs.train.data import Counts, Prepared, unpack

    ids = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13]]
    rows = Dataset.from_dict(
        {"input_ids": ids, "labels": ids, "seq_lengths": [[2, 3], [5], [1, 1, 2]]}
    )
    packed = Prepared(dataset=rows, counts=Counts(rows=6, samples=6), files=(), prompts_hash="")
    first, second = (unpack(packed, seed=3).dataset for _ in range(2))
    assert sorted(first["input_ids"]) == [[0, 1], [2, 3, 4], [5, 6, 7, 8, 9], [10], [11], [12, 13]]
    assert first["labels"] == first["input_ids"]
    assert [[len(one)] for one in first["input_ids"]] == list(first["seq_lengths"])
    assert list(first["input_ids"]) == list(second["input_ids"])
