"""The catalog of models against its own counts, and every way to name a model."""

import json
import math

import pytest

from loracle.catalog.models import DATA, find_model, known_models, load_models, tokenizer_folder
from loracle.errors import CatalogError, UnsupportedModel

DOCUMENT = json.loads(DATA.read_text("utf-8"))
MODELS = {shape.id: shape for shape in load_models()}


@pytest.mark.parametrize("row", DOCUMENT["models"], ids=lambda row: row["id"])
def test_the_law_gives_what_was_counted(row):
    shape = MODELS[row["id"]]
    assert shape.num_params == row["num_params"]
    built = [
        [
            line.name,
            line.role,
            line.count,
            line.in_features,
            line.out_features,
            line.bias,
            line.path,
        ]
        for line in shape.linears
    ]
    assert sorted(built, key=repr) == sorted(row["linears"], key=repr)


@pytest.mark.parametrize("row", DOCUMENT["models"], ids=lambda row: row["id"])
def test_parts_add_up_to_the_whole(row):
    shape = MODELS[row["id"]]
    linears = sum(
        line.count * line.out_features * (line.in_features + line.bias)
        for line in shape.linears
        if not (line.role == "head" and shape.tied_embeddings)
    )
    rest = shape.fused_expert_params + shape.router_params + shape.other_params
    assert linears + shape.embedding_params + rest == shape.num_params


@pytest.mark.parametrize("row", DOCUMENT["models"], ids=lambda row: row["id"])
def test_row_is_complete(row):
    shape = MODELS[row["id"]]
    assert row["verification"] in ("exact", "derived", "label")
    assert shape.license
    assert shape.family
    assert {"shape", "params"} <= set(shape.sources)
    assert all(len(sourced.date) == 10 for sourced in shape.sources.values())
    assert set(shape.targets("attention")) < set(shape.targets("all-linear")) or row[
        "id"
    ].startswith(("mistralai/Mixtral", "Qwen/Qwen3-30B", "Qwen/Qwen3-235B", "openai/gpt-oss"))


def test_published_counts():
    # safetensors totals of the repositories
    assert MODELS["Qwen/Qwen3-8B"].num_params == 8_190_735_360
    assert MODELS["meta-llama/Llama-2-7b-hf"].num_params == 6_738_415_616
    assert MODELS["meta-llama/Llama-2-70b-hf"].num_params == 68_976_648_192
    assert math.isclose(MODELS["Qwen/Qwen2.5-7B"].num_params, 7.6156e9, rel_tol=1e-4)


def test_ids_are_unique():
    ids = [row["id"].lower() for row in DOCUMENT["models"]]
    assert len(ids) == len(set(ids)) == 126
    assert len(known_models()) > 126


@pytest.mark.parametrize(
    ("ref", "id_"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("qwen/qwen3-8b", "Qwen/Qwen3-8B"),
        ("Qwen3-8B", "Qwen/Qwen3-8B"),
        ("  Qwen/Qwen3-8B ", "Qwen/Qwen3-8B"),
        ("lmsys/vicuna-7b-v1.5", "lmsys/vicuna-7b-v1.5"),
        ("LMSYS/Vicuna-7B-v1.5", "lmsys/vicuna-7b-v1.5"),
        ("modelscope:Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("modelscope:modelscope/Llama-2-7b-ms", "meta-llama/Llama-2-7b-hf"),
        ("modelscope/Llama-2-7b-ms", "meta-llama/Llama-2-7b-hf"),
    ],
)
def test_names_that_need_no_hub(ref, id_):
    assert find_model(ref, offline=True).id == id_


def test_a_config_file_and_its_folder_give_the_catalogs_shape(tmp_path):
    row = next(row for row in DOCUMENT["models"] if row["id"] == "Qwen/Qwen3-8B")
    (tmp_path / "config.json").write_text(json.dumps(row["hf_config"]))
    for ref in (str(tmp_path), str(tmp_path / "config.json")):
        shape = find_model(ref)
        assert shape.num_params == MODELS["Qwen/Qwen3-8B"].num_params
        assert shape.linears == MODELS["Qwen/Qwen3-8B"].linears


def test_a_folder_named_like_an_id_wins_only_with_a_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    assert find_model("Qwen/Qwen3-8B", offline=True).id == "Qwen/Qwen3-8B"
    small = next(row for row in DOCUMENT["models"] if row["id"] == "Qwen/Qwen3-0.6B")
    (tmp_path / "Qwen" / "Qwen3-8B" / "config.json").write_text(json.dumps(small["hf_config"]))
    assert find_model("Qwen/Qwen3-8B", offline=True).num_params == small["num_params"]


def test_a_tokenizer_in_a_local_folder_is_at_hand(tmp_path):
    with pytest.raises(CatalogError, match="E032"):
        tokenizer_folder(str(tmp_path / "config.json"))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_folder(str(tmp_path / "config.json")) == tmp_path


def fails(ref: str, code: str) -> CatalogError:
    with pytest.raises(CatalogError) as caught:
        find_model(ref, offline=True)
    assert caught.value.code == code
    return caught.value


def test_an_unknown_id_names_the_nearest():
    error = fails("Qwen/Qwen3-9B", "E036")
    assert "Qwen/Qwen3-8B" in str(error.values["names"])
    assert error.hints == ("hint.catalog.nearest", "hint.hub.offline")


@pytest.mark.parametrize(
    "ref", ["", "   ", "a b", "../x/y/z", "./nothing.json", "/nowhere", "a/b/c", "é"]
)
def test_what_cannot_be_a_model_is_one_error(ref):
    fails(ref, "E032")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"[" * 200_000],
    ids=["empty", "cut", "list", "null", "encoding", "deep"],
)
def test_a_broken_config_is_one_error(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert str(path) in str(fails(str(path), "E035").values["path"])


def test_an_adapter_folder_says_whose_adapter_it_is(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen3-8B"}')
    assert fails(str(tmp_path), "E032").values["base"] == "Qwen/Qwen3-8B"


def test_a_folder_without_a_config_is_one_error(tmp_path):
    assert fails(str(tmp_path), "E032").message == "error.model.no_config"


def test_an_unknown_architecture_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 768}')
    with pytest.raises(UnsupportedModel) as caught:
        find_model(str(tmp_path))
    assert caught.value.code == "E033"
