"""Real files of every kind and fault; each fault is named with its line and column."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loracle.catalog.datasets import read_dataset
from loracle.catalog.datasets.reader import MAX_PROBLEMS
from loracle.errors import DataError, InputError, MissingExtra

GOOD = {"instruction": "Add", "input": "1 1", "output": "2"}


def write(path, *rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def problems(path, **options):
    with pytest.raises(DataError) as caught:
        read_dataset(path, **options)
    assert caught.value.code == "E020"
    return [
        (one.message.removeprefix("data.reason."), one.values["line"], one.values["column"])
        for one in caught.value.problems
    ]


class TestContainers:
    def test_jsonl(self, tmp_path):
        data = read_dataset(write(tmp_path / "a.jsonl", GOOD, GOOD))
        assert data.report.format == "alpaca"
        assert [(one.row, one.line) for one in data.samples] == [(1, 1), (2, 2)]

    def test_blank_lines_are_no_rows(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text(f"\n{json.dumps(GOOD)}\n\n{json.dumps(GOOD)}\n\n")
        data = read_dataset(path)
        assert [(one.row, one.line) for one in data.samples] == [(1, 2), (2, 4)]

    def test_json_array_knows_its_lines(self, tmp_path):
        path = tmp_path / "a.json"
        path.write_text(json.dumps([GOOD, GOOD], indent=1))
        assert [one.line for one in read_dataset(path).samples] == [2, 7]

    def test_json_that_holds_lines_is_read_as_lines(self, tmp_path):
        assert len(read_dataset(write(tmp_path / "a.json", GOOD, GOOD)).samples) == 2

    def test_jsonl_that_holds_an_array_is_read_as_array(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps([GOOD, GOOD]))
        assert len(read_dataset(path).samples) == 2

    def test_rows_wrapped_in_an_object(self, tmp_path):
        path = tmp_path / "a.json"
        path.write_text(json.dumps({"version": 1, "data": [GOOD, GOOD]}))
        assert len(read_dataset(path).samples) == 2

    def test_csv_with_commas_newlines_and_quotes_in_cells(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text('prompt,completion\n"a, ""b""\nc",d\ne,f\n')
        first, second = read_dataset(path).samples
        assert (first.prompt, first.completion, first.line) == ('a, "b"\nc', "d", 2)
        assert (second.prompt, second.line) == ("e", 4)

    @pytest.mark.parametrize("delimiter", [";", "\t"])
    def test_other_delimiters(self, tmp_path, delimiter):
        path = tmp_path / "a.csv"
        path.write_text(f"prompt{delimiter}completion\na, b{delimiter}c\n")
        assert read_dataset(path).samples[0].prompt == "a, b"

    def test_csv_holds_turns_as_json(self, tmp_path):
        path = tmp_path / "a.csv"
        cell = json.dumps(turns(U, A)).replace('"', '""')
        path.write_text(f'messages\n"{cell}"\n')
        assert read_dataset(path).samples[0].answer == "a"

    def test_parquet(self, tmp_path):
        pq = pytest.importorskip("pyarrow.parquet")
        import pyarrow as pa

        turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
        pq.write_table(pa.table({"conversations": [turns, turns]}), tmp_path / "a.parquet")
        data = read_dataset(tmp_path / "a.parquet")
        assert data.report.format == "sharegpt"
        assert [(turn.role, turn.content) for turn in data.samples[1].messages] == [
            ("user", "a"),
            ("assistant", "b"),
        ]
        assert data.samples[1].line is None

    def test_parquet_without_pyarrow_is_one_line(self, tmp_path, monkeypatch):
        (tmp_path / "a.parquet").write_bytes(b"PAR1")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtra) as caught:
            read_dataset(tmp_path / "a.parquet")
        assert caught.value.values == {"extra": "parquet", "package": "pyarrow"}

    def test_pattern_reads_files_in_order(self, tmp_path):
        write(tmp_path / "b.jsonl", {**GOOD, "output": "b"})
        write(tmp_path / "a.jsonl", {**GOOD, "output": "a"})
        for source in (tmp_path, tmp_path / "*.jsonl"):
            data = read_dataset(source)
            assert [one.answer for one in data.samples] == ["a", "b"]
            assert [one.row for one in data.samples] == [1, 2]

    def test_truncated_parquet_is_one_error(self, tmp_path):
        pytest.importorskip("pyarrow")
        (tmp_path / "a.parquet").write_bytes(b"PAR1" + b"x" * 40)
        with pytest.raises(DataError) as caught:
            read_dataset(tmp_path / "a.parquet")
        assert caught.value.code == "E023"

    @pytest.mark.parametrize(
        ("name", "content", "code"),
        [
            ("a.txt", "hello", "E021"),
            ("a.json", "42", "E021"),
            ("a.jsonl", "", "E024"),
            ("a.json", "[]", "E024"),
            ("a.csv", "", "E024"),
            ("a.csv", "prompt,completion\n", "E024"),
            ("a.csv", "prompt,prompt\na,b\n", "E023"),
            ("a.csv", 'prompt,completion\n"open,b\nc,d\n', "E023"),
            ("a.jsonl", '{"foo": 1}\n', "E025"),
        ],
    )
    def test_whole_file_faults(self, tmp_path, name, content, code):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError) as caught:
            read_dataset(tmp_path / name)
        assert caught.value.code == code

    def test_missing_file(self, tmp_path):
        with pytest.raises(InputError) as caught:
            read_dataset(tmp_path / "none.jsonl")
        assert (caught.value.code, caught.value.message) == ("E013", "error.missing_file")

    def test_unknown_format_name(self, tmp_path):
        with pytest.raises(DataError) as caught:
            read_dataset(write(tmp_path / "a.jsonl", GOOD), format="alpacca")
        assert caught.value.code == "E025"


class TestEncodings:
    def row(self, text="你好，世界"):
        return json.dumps({"text": text}, ensure_ascii=False) + "\n"

    @pytest.mark.parametrize(
        "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
    )
    @pytest.mark.parametrize("suffix", ["jsonl", "csv", "json"])
    def test_unicode_files_are_read(self, tmp_path, encoding, suffix):
        text = {"jsonl": self.row(), "csv": "text\n你好，世界\n", "json": f"[{self.row()}]"}[suffix]
        path = tmp_path / f"a.{suffix}"
        path.write_bytes((text + (" " * 60 if suffix == "json" else "")).encode(encoding))
        data = read_dataset(path)
        assert data.samples[0].text == "你好，世界"
        assert data.report.encoding == encoding

    @pytest.mark.parametrize(
        ("encoding", "text", "guess"),
        [("gbk", "你好，世界", "gbk"), ("latin-1", "café où", "latin-1")],
    )
    @pytest.mark.parametrize("suffix", ["jsonl", "json"])
    def test_others_are_named_with_the_offset(self, tmp_path, encoding, text, guess, suffix):
        first = self.row("plain")
        body = first + self.row(text) if suffix == "jsonl" else f"[{first},{self.row(text)}]"
        path = tmp_path / f"a.{suffix}"
        path.write_bytes(body.encode(encoding))
        with pytest.raises(DataError) as caught:
            read_dataset(path)
        values = caught.value.values
        offset = next(i for i, byte in enumerate(path.read_bytes()) if byte > 127)
        assert (caught.value.code, values["guess"]) == ("E022", guess)
        assert values["line"] == 2
        assert offset <= values["offset"] <= offset + 1

    def test_a_named_encoding_is_used(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_bytes(self.row().encode("gbk"))
        assert read_dataset(path, encoding="gbk").samples[0].text == "你好，世界"

    def test_an_unknown_encoding_is_refused(self, tmp_path):
        with pytest.raises(DataError) as caught:
            read_dataset(write(tmp_path / "a.jsonl", GOOD), encoding="gbq")
        assert caught.value.code == "E022"

    def test_line_separators_inside_text_stay(self, tmp_path):
        text = "a\u2028b\u0085c"
        data = read_dataset(write(tmp_path / "a.jsonl", {"text": text}))
        assert data.samples[0].text == text


BROKEN = [
    ('{"text": "a",}', "trailing_comma", 13),
    ('{"text": "a"},', "trailing_comma", 14),
    ("{'text': 'a'}", "single_quotes", 2),
    ('{"text": "a', "truncated", 12),
    ('{"text": "a\tb"}', "control_character", 12),
    ('{"text": "a", "text": "b"}', "duplicate_key", 15),
    (r'{"text": "a\ud83d b"}', "lone_surrogate", 12),
    ('{"text": "a", "score": NaN}', "nan_literal", 24),
    ('{"text": "NaN", "score": -Infinity}', "nan_literal", 26),
    ('{"text": "a"} {"text": "b"}', "extra_data", 15),
    ('{"text": a}', "syntax", 10),
    ("[1, 2]", "not_an_object", None),
]


class TestBrokenRows:
    @pytest.mark.parametrize(("line", "reason", "column"), BROKEN)
    def test_jsonl_line(self, tmp_path, line, reason, column):
        path = tmp_path / "a.jsonl"
        path.write_text(f'{{"text": "x"}}\n{line}\n{{"text": "y"}}\n')
        assert problems(path) == [(reason, 2, column)]

    @pytest.mark.parametrize(("line", "reason", "column"), BROKEN)
    def test_skipped_rows_are_counted(self, tmp_path, line, reason, column):
        path = tmp_path / "a.jsonl"
        path.write_text(f'{{"text": "x"}}\n{line}\n{{"text": "y"}}\n')
        data = read_dataset(path, skip_bad=True)
        assert [one.text for one in data.samples] == ["x", "y"]
        assert data.report.bad == {reason: 1}
        assert data.report.num_rows == data.report.num_samples + data.report.num_bad == 3

    def test_cut_off_last_line(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "x"}\n{"text": "y')
        assert problems(path) == [("truncated_last_line", 2, 12)]
        data = read_dataset(path, repair=True)
        assert [one.text for one in data.samples] == ["x"]
        assert data.report.repaired == {"truncated_last_line": 1}

    def test_a_line_cut_off_in_the_middle_is_not_repaired(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "x\n{"text": "y"}\n')
        assert problems(path, repair=True) == [("truncated", 1, 12)]

    def test_repair_reads_over_commas_outside_strings_only(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "keep ,} this",},\n')
        data = read_dataset(path, repair=True)
        assert data.samples[0].text == "keep ,} this"
        assert data.report.repaired == {"trailing_comma": 1}

    def test_all_bad_is_an_error_even_when_skipping(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text("{'text': 'a'}\n")
        assert problems(path, skip_bad=True) == [("single_quotes", 1, 2)]

    def test_many_problems_are_cut_but_counted(self, tmp_path):
        path = write(tmp_path / "a.jsonl", *[{"text": None}] * 50, {"text": "x"})
        with pytest.raises(DataError) as caught:
            read_dataset(path)
        assert len(caught.value.problems) == MAX_PROBLEMS
        assert caught.value.values["reasons"] == {"null_value": 50}

    @pytest.mark.parametrize(
        ("text", "reason", "line", "column"),
        [
            ('[{"text": "a"},\n {"text": "b"},\n]', "trailing_comma", 2, 15),
            ('[{"text": "a"},\n {"text": "b"', "truncated", 2, 14),
            ('[{"text": "a"}\n {"text": "b"}]', "syntax", 2, 2),
            ('[{"text": "a"},\n {"text": NaN}]', "nan_literal", 2, 11),
            ('[{"text": "a"}] x', "extra_data", 1, 17),
        ],
    )
    def test_array_fault_ends_the_reading(self, tmp_path, text, reason, line, column):
        path = tmp_path / "a.json"
        path.write_text(text)
        with pytest.raises(DataError) as caught:
            read_dataset(path)
        values = caught.value.values
        assert (caught.value.code, values["reason"], values["line"], values["column"]) == (
            "E023", reason, line, column,
        )  # fmt: skip

    def test_array_with_trailing_comma_repaired(self, tmp_path):
        path = tmp_path / "a.json"
        path.write_text('[{"text": "a"},\n {"text": "b"},\n]')
        data = read_dataset(path, repair=True)
        assert len(data.samples) == 2
        assert data.report.repaired == {"trailing_comma": 1}

    def test_csv_row_with_too_few_fields(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("prompt,completion\na,b\nc\nd,e\n")
        assert problems(path) == [("csv_fields", 3, None)]


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


U, A, S = ("user", "q"), ("assistant", "a"), ("system", "s")


class TestRows:
    @pytest.mark.parametrize(
        ("row", "reason", "key"),
        [
            ({"instruction": "a", "output": None}, "null_value", "output"),
            ({"instruction": "a", "output": ""}, "empty_output", "output"),
            ({"instruction": "a", "output": " \n"}, "empty_output", "output"),
            ({"instruction": "", "output": "b"}, "empty_prompt", "instruction"),
            ({"instruction": "a", "output": 7}, "not_text", "output"),
            ({"instruction": "a"}, "missing_key", "output"),
            ({"output": "a"}, "missing_key", "instruction"),
        ],
    )
    def test_alpaca(self, tmp_path, row, reason, key):
        path = write(tmp_path / "a.jsonl", GOOD, row)
        with pytest.raises(DataError) as caught:
            read_dataset(path)
        (problem,) = caught.value.problems
        assert (problem.message, problem.values["key"]) == (f"data.reason.{reason}", key)

    @pytest.mark.parametrize(
        ("messages", "reason"),
        [
            (turns(U, U), "no_assistant_turn"),
            (turns(U, A, U), "last_turn"),
            (turns(U, U, A), "turn_order"),
            (turns(A), "turn_order"),
            (turns(U, S, A), "turn_order"),
            (turns(U, A, A), "turn_order"),
            (turns(U, ("assistant", "")), "empty_output"),
            (turns(("user", ""), A), "empty_prompt"),
            (turns(("critic", "x"), A), "unknown_role"),
            ([], "no_turns"),
            (None, "null_value"),
            ("hello", "not_a_list"),
            (["hello"], "not_a_turn"),
            ([{"content": "a"}], "missing_key"),
            ([{"role": "user"}], "missing_key"),
            (
                turns(("user", [{"type": "image_url", "image_url": {"url": "x"}}]), A),
                "non_text_part",
            ),
            (turns(("user", {"a": 1}), A), "not_text"),
        ],
    )
    def test_messages(self, tmp_path, messages, reason):
        path = write(tmp_path / "a.jsonl", {"messages": turns(U, A)}, {"messages": messages})
        assert problems(path) == [(reason, 2, None)]

    @pytest.mark.parametrize(
        "messages",
        [
            turns(S, U, A),
            turns(U, A, U, A),
            turns(U, A, ("tool", "r"), A),
            turns(U, A, ("tool", "r"), ("tool", "r"), A, U, A),
        ],
    )
    def test_good_orders(self, tmp_path, messages):
        data = read_dataset(write(tmp_path / "a.jsonl", {"messages": messages}))
        assert [turn.as_message() for turn in data.samples[0].messages] == messages

    def test_content_parts_are_joined(self, tmp_path):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        row = {"messages": turns(("user", parts), A)}
        data = read_dataset(write(tmp_path / "a.jsonl", {"messages": turns(U, A)}, row))
        assert data.samples[1].question == "ab"

    def test_sharegpt_roles(self, tmp_path):
        for name in ("gpt", "bard", "chatgpt", "GPT"):
            row = {
                "system": "be kind",
                "conversations": [{"from": "human", "value": "q"}, {"from": name, "value": "a"}],
            }
            (sample,) = read_dataset(write(tmp_path / "a.jsonl", row)).samples
            assert [turn.role for turn in sample.messages] == ["system", "user", "assistant"]

    def test_sharegpt_tools(self, tmp_path):
        row = {
            "tools": '[{"name": "add"}]',
            "conversations": [
                {"from": "human", "value": "1+1"},
                {"from": "function_call", "value": '{"name": "add"}'},
                {"from": "observation", "value": "2"},
                {"from": "gpt", "value": "2"},
            ],
        }
        (sample,) = read_dataset(write(tmp_path / "a.jsonl", row)).samples
        assert [turn.role for turn in sample.messages] == ["user", "assistant", "tool", "assistant"]
        assert sample.tools == ({"name": "add"},)

    def test_tool_calls_without_content(self, tmp_path):
        call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": "1+1"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "2"},
            {"role": "assistant", "content": "2"},
        ]
        (sample,) = read_dataset(write(tmp_path / "a.jsonl", {"messages": messages})).samples
        assert sample.messages[1].as_message()["tool_calls"] == [call]

    def test_unknown_sharegpt_role(self, tmp_path):
        row = {"conversations": [{"from": "narrator", "value": "q"}, {"from": "gpt", "value": "a"}]}
        assert problems(write(tmp_path / "a.jsonl", row)) == [("unknown_role", 1, None)]

    def test_alpaca_becomes_turns(self, tmp_path):
        row = {**GOOD, "system": "s", "history": [["q", "a"]]}
        (sample,) = read_dataset(write(tmp_path / "a.jsonl", row)).samples
        assert [(turn.role, turn.content) for turn in sample.messages] == [
            ("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "Add\n1 1"),
            ("assistant", "2"),
        ]  # fmt: skip
        assert (sample.question, sample.answer) == ("Add\n1 1", "2")

    @pytest.mark.parametrize(
        ("row", "format_name"),
        [
            (GOOD, "alpaca"),
            ({"instruction": "a", "response": "b"}, "alpaca"),
            ({"query": "a", "response": "b"}, "alpaca"),
            ({"question": "a", "answer": "b"}, "alpaca"),
            ({"input": "a", "output": "b"}, "alpaca"),
            ({"prompt": "a", "completion": "b"}, "prompt-completion"),
            ({"prompt": "a", "response": "b"}, "prompt-completion"),
            ({"messages": turns(U, A), "text": "x"}, "messages"),
            ({"conversations": turns(U, A)}, "sharegpt"),
            ({"prompt": turns(U), "completion": turns(A)}, "prompt-completion"),
            ({"text": "b"}, "text"),
        ],
    )
    def test_auto_detection(self, tmp_path, row, format_name):
        data = read_dataset(write(tmp_path / "a.jsonl", row))
        assert data.report.format == format_name
        assert data.samples[0].answer == {"text": None}.get(format_name, data.samples[0].answer)

    def test_a_long_id_is_no_trouble_and_unused_keys_are_named(self, tmp_path):
        row = {**GOOD, "id": 123456789012345678901234567890}
        data = read_dataset(write(tmp_path / "a.jsonl", row))
        assert data.report.unused_keys == ("id",)


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(str.strip)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=8), st.booleans(), st.sampled_from(["jsonl", "json"]))
def test_what_was_written_is_what_is_read(tmp_path_factory, texts, ascii_only, suffix):
    path = tmp_path_factory.mktemp("any") / f"a.{suffix}"
    lines = [json.dumps({"text": text}, ensure_ascii=ascii_only) for text in texts]
    whole = "\n".join(lines) if suffix == "jsonl" else f"[{', '.join(lines)}]"
    path.write_text(whole, "utf-8", newline="\n")
    data = read_dataset(path)
    assert [one.text for one in data.samples] == texts
    assert data.report.num_bad == 0
