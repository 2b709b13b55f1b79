"""Shapes against 126 counted models, and against transformers itself on the meta device."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loracle.catalog.shapes import architectures, known_architectures, shape_from_config
from loracle.errors import CatalogError, UnsupportedModel

COUNTED = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "counted_models.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("model", COUNTED, ids=lambda model: model["id"])
def test_counts_equal_the_published_ones(model):
    shape = shape_from_config(model["config"], id=model["id"])
    assert shape.num_params == model["num_params"]
    assert shape.buildable == model["buildable"]
    rows = {
        (
            line.name, line.role, line.count, line.in_features, line.out_features, line.bias,
            line.path,
        )
        for line in shape.linears
    }  # fmt: skip
    assert rows == {tuple(row) for row in model["linears"]}


# Small builds: the layout, the defaults and the switches of every architecture, at a size that
# the meta device builds in a blink.
SMALL = {"num_hidden_layers": 3, "n_layer": 3, "n_layers": 3}
VARIANTS = [
    ("falcon", {"hidden_size": 64, "num_attention_heads": 8, "num_kv_heads": 2,
                "new_decoder_architecture": True}),
    ("falcon", {"hidden_size": 64, "num_attention_heads": 8, "multi_query": False,
                "parallel_attn": False, "alibi": True, "bias": True}),
    ("opt", {"hidden_size": 64, "num_attention_heads": 8, "word_embed_proj_dim": 32,
             "do_layer_norm_before": False, "ffn_dim": 128}),
    ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True}),
    ("cohere", {"use_qk_norm": True, "hidden_size": 128, "num_attention_heads": 8}),
    ("phi", {"qk_layernorm": True, "num_key_value_heads": 8}),
    ("gpt_bigcode", {"multi_query": False}),
    ("gpt2", {"n_inner": 100, "tie_word_embeddings": False}),
    ("glm4_moe", {"use_qk_norm": True, "attention_bias": True, "n_routed_experts": 4}),
    ("deepseek_v3", {"q_lora_rank": None, "attention_bias": True, "n_routed_experts": 4,
                     "num_hidden_layers": 5}),
    ("qwen3_moe", {"num_experts": 4, "mlp_only_layers": [1], "num_hidden_layers": 4}),
    ("qwen3_moe", {"num_experts": 4, "decoder_sparse_step": 2}),
    ("qwen2_moe", {"num_experts": 4, "decoder_sparse_step": 2, "qkv_bias": False}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2}),
    ("llama", {"head_dim": 64, "tie_word_embeddings": True}),
    ("gemma4_text", {"hidden_size_per_layer_input": 0, "hidden_size": 128, "vocab_size": 100,
                     "num_hidden_layers": 6}),
    ("gemma4_text", {"hidden_size_per_layer_input": 0, "hidden_size": 128, "vocab_size": 100,
                     "num_hidden_layers": 6, "enable_moe_block": True, "num_experts": 4,
                     "top_k_experts": 2, "moe_intermediate_size": 32}),
    ("qwen3_5_text", {"num_hidden_layers": 8, "hidden_size": 256}),
]  # fmt: skip
PLAIN = [
    (name, {})
    for name, row in architectures().items()
    if not row["remote"] and name not in ("internlm3", "gemma4_text", "qwen3_5_text", "ministral")
]


@pytest.mark.parametrize(("name", "changes"), PLAIN + VARIANTS)
def test_layout_equals_the_meta_build(name, changes):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if name == "minicpm3" and not hasattr(transformers, "MiniCPM3Config"):
        pytest.skip("this transformers has no MiniCPM3")
    layers = {
        key: value
        for key, value in SMALL.items()
        if key == architectures()[name]["keys"].get("num_hidden_layers", "num_hidden_layers")
    }
    written = {**layers, **changes}
    config = transformers.AutoConfig.for_model(name, **written)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shape = shape_from_config({"model_type": name, **written}, id=name)
    assert shape.num_params == sum(one.numel() for one in model.parameters())
    built = Counter(
        (path, module.weight.shape, module.bias is not None)
        for path, module in (
            (re.sub(r"\.\d+\.", ".N.", path), module)
            for path, module in model.named_modules()
            if isinstance(module, torch.nn.Linear)
        )
    )
    if built and name not in ("gpt2", "gpt_bigcode"):  # those use Conv1D, which is transposed
        mine = Counter()
        for row in shape.linears:
            mine[(row.path, (row.out_features, row.in_features), row.bias)] += row.count
        assert mine == Counter({(k, tuple(s), b): n for (k, s, b), n in built.items()})


def test_multimodal_config_gives_the_decoder():
    inner = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,
             "intermediate_size": 10240, "vocab_size": 262208}  # fmt: skip
    nested = shape_from_config({"model_type": "gemma3", "text_config": inner}, id="x")
    assert nested.num_params == 3_880_263_168
    assert nested.model_type == "gemma3_text"


def test_unknown_architecture_is_refused():
    with pytest.raises(UnsupportedModel) as caught:
        shape_from_config({"model_type": "mamba2"}, id="state-spaces/mamba2")
    assert caught.value.code == "E033"
    assert caught.value.values["model_type"] == "mamba2"
    with pytest.raises(UnsupportedModel):
        shape_from_config({"hidden_size": 4096})
    with pytest.raises(UnsupportedModel):  # Gemma 4's small models embed every layer's input
        shape_from_config({"model_type": "gemma4_text"})


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 0}, {"hidden_size": -4096}, {"hidden_size": "4096"},
        {"num_attention_heads": 31}, {"num_key_value_heads": 5}, {"num_hidden_layers": 1.5},
        {"vocab_size": True}, {"vocab_size": None},
    ],
)  # fmt: skip
def test_impossible_values_are_errors(change):
    with pytest.raises(CatalogError) as caught:
        shape_from_config({"model_type": "llama", **change}, id="m")
    assert caught.value.code == "E034"


@given(
    name=st.sampled_from(known_architectures()),
    key=st.sampled_from(["hidden_size", "num_attention_heads", "vocab_size", "head_dim",
                         "num_key_value_heads", "num_hidden_layers", "n_embd", "layer_types"]),
    value=st.one_of(st.none(), st.integers(-5, 300), st.text(max_size=3), st.floats(), st.lists(
        st.text(max_size=2), max_size=2), st.dictionaries(st.text(max_size=1), st.none())),
)  # fmt: skip
def test_any_value_gives_a_shape_or_an_error_of_the_tree(name, key, value):
    try:
        shape = shape_from_config({"model_type": name, key: value}, id="m")
    except CatalogError:
        return
    assert shape.num_params > 0
