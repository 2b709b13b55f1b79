"""Recipes as people write them: all faults at once, each with its line and the nearest key."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from loracle import words
from loracle.domain.recipe import Recipe
from loracle.domain.recipe_keys import expected_of, known_keys, nearest_key
from loracle.domain.recipe_text import parse_recipe, read_recipe
from loracle.errors import RecipeError

WRONG = """\
model: Qwen/Qwen3-8B
lora:
  rnak: 8
  dropout: 2
  alpha: "3"
training:
  epochs: .inf
  epochs: 3
  micro_batch: -1
  gradient_checkpointing: maybe
  seq_len: 20.5
methd: lora
save: {keep: true}
"""


def faults(text, overrides=None):
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "recipe.yaml", overrides)
    return [
        (one.message, one.values["line"], one.values.get("key")) for one in caught.value.problems
    ]


def recipe_or_error(text):
    try:
        return parse_recipe(text)
    except RecipeError as error:
        return error


def test_all_faults_at_once_with_their_lines():
    assert faults(WRONG) == [
        ("recipe.unknown_key_near", 3, "lora.rnak"),
        ("recipe.below", 4, "lora.dropout"),
        ("recipe.wrong_value", 5, "lora.alpha"),
        ("recipe.not_finite", 7, "training.epochs"),
        ("recipe.duplicate_key", 8, "training.epochs"),
        ("recipe.wrong_value", 9, "training.micro_batch"),
        ("recipe.wrong_value", 10, "training.gradient_checkpointing"),
        ("recipe.wrong_value", 11, "training.seq_len"),
        ("recipe.unknown_key_near", 12, "methd"),
        ("recipe.wrong_value", 13, "save.keep"),
    ]


def test_every_fault_has_a_sentence_in_both_languages():
    with pytest.raises(RecipeError) as caught:
        parse_recipe(WRONG, "recipe.yaml", {"lora.rang": "1", "rent.budget": "lots"})
    for problem in caught.value.problems:
        assert problem.code == "E012"
        for language in words.LANGUAGES:
            sentence = words.text(problem.message, language, **problem.values)
            assert sentence != problem.message
            assert "{" not in sentence.replace("{keep", "")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("lora.rnak", "lora.rank"),
        ("rank", "lora.rank"),
        ("methd", "method"),
        ("traning", "training"),
        ("training.max_seq_len", "training.seq_len"),
        ("lora.learning_rate", "training.learning_rate"),
        ("flavour", None),
    ],
)
def test_nearest_key(key, nearest):
    assert nearest_key(tuple(key.split("."))) == nearest


def test_numbers_as_yaml_1_2_reads_them():
    recipe = parse_recipe("model: a\ntraining:\n  learning_rate: 2e-4\n  packing: no\n")
    assert recipe.training.learning_rate == 2e-4
    assert recipe.training.packing is False


def test_overrides_win_and_are_read_as_yaml():
    text = "model: a\nlora:\n  rank: 64\n"
    parsed = read_recipe(text, "r.yaml", {"lora.rank": "8", "lora.targets": "[q_proj, v_proj]"})
    assert parsed.recipe.lora.rank == 8
    assert parsed.recipe.lora.targets == ("q_proj", "v_proj")
    assert parsed.origins["lora.rank"] == ("command line", None)
    assert parsed.origins["model"] == ("r.yaml", 1)
    assert "lora.alpha" not in parsed.origins


def test_faults_of_overrides_name_the_command_line():
    assert faults("model: a\n", {"lora.rang": "8", "training.steps": "-3"}) == [
        ("recipe.flag.unknown_key_near", None, "lora.rang"),
        ("recipe.flag.above", None, "training.steps"),
    ]


def test_missing_model():
    assert faults("method: lora\n") == [("recipe.missing_key", 1, "model")]
    assert faults("") == [("recipe.missing_key", 1, "model")]


def test_budget_and_deadline_need_units():
    text = "model: a\nrent:\n  budget: 3000\n  deadline: soon\n"
    assert faults(text)[0] == ("recipe.wrong_value", 3, "rent.budget")
    text = "model: a\nrent:\n  budget: lots\n  deadline: soon\n"
    assert faults(text) == [
        ("recipe.bad_unit", 3, "rent.budget"),
        ("recipe.bad_unit", 4, "rent.deadline"),
    ]


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("model: [a", "recipe.syntax", 1),
        ("model: a\n\tlora: 3\n", "recipe.syntax", 2),
        ("a: &x [1]\nb: *x\n", "recipe.syntax", 2),
        ("[" * 20000, "recipe.syntax", 1),
    ],
)
def test_broken_yaml_names_the_line(text, message, line):
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "recipe.yaml")
    assert (caught.value.message, caught.value.values["line"]) == (message, line)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("model: a".encode("utf-16"), "recipe.encoding"),
        ("model: a\n# 模型".encode("gbk"), "recipe.not_utf8"),
        (b"- a\n- b\n", "recipe.no_mapping"),
    ],
)
def test_wrong_encodings_and_shapes(raw, message):
    with pytest.raises(RecipeError) as caught:
        parse_recipe(raw, "recipe.yaml")
    assert caught.value.message == message


def test_byte_order_mark_is_fine():
    assert parse_recipe(b"\xef\xbb\xbfmodel: a\n").model == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {epochs: 1, steps: 5}", "recipe.epochs_and_steps"),
        ("data: {eval: x.jsonl}", "recipe.eval_without_train"),
        ("training: {micro_batch: 3}", "recipe.batch_not_divisible"),
    ],
)
def test_keys_that_contradict_each_other(text, message):
    with pytest.raises(RecipeError) as caught:
        parse_recipe("model: a\n" + text)
    assert [problem.message for problem in caught.value.problems] == [message]


def test_every_key_says_what_it_takes():
    assert expected_of(("training", "micro_batch")) == "int > 0 | auto"
    assert expected_of(("lora", "dropout")) == "number >= 0, < 1"
    assert all(expected_of(tuple(key.split("."))) != "group" for key in known_keys())


def test_what_a_recipe_says_reads_back_the_same():
    recipe = parse_recipe("model: a\ntraining: {micro_batch: 4}\nlora: {targets: [q_proj]}\n")
    again = parse_recipe(yaml.safe_dump(recipe.model_dump(mode="json")))
    assert again == recipe


@given(st.binary(max_size=200))
def test_any_bytes_give_a_recipe_or_a_recipe_error(raw):
    assert isinstance(recipe_or_error(raw), Recipe | RecipeError)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["model", "lora", "rank", "training"]), inner)
        ),
        max_leaves=8,
    )
)
def test_any_yaml_gives_a_recipe_or_a_recipe_error(tree):
    assert isinstance(recipe_or_error(yaml.safe_dump(tree)), Recipe | RecipeError)


def test_every_key_of_the_schema_is_described():
    from loracle.domain.recipe_schema import recipe_schema

    schema = recipe_schema()
    groups = {**schema["$defs"], "Recipe": schema}
    bare = [
        f"{name}.{key}"
        for name, group in groups.items()
        for key, value in group["properties"].items()
        if "description" not in value and "$ref" not in value
    ]
    assert bare == []
    assert schema["$defs"]["Lora"]["properties"]["rank"]["description"] == "Width of the adapter."
