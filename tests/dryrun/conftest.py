"""Small models for the dry run: real architectures, little width."""

from types import SimpleNamespace

import pytest

from loracle.domain.setup import LoraSetup, TrainingSetup

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 9,
    "num_attention_heads": 4, "vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
CONFIGS = {
    "llama": {"model_type": "llama", **SMALL, "num_key_value_heads": 2},
    "qwen2-tied": {
        "model_type": "qwen2", **SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "gemma2": {
        "model_type": "gemma2", **SMALL, "num_hidden_layers": 12, "num_key_value_heads": 2,
        "head_dim": 16, "sliding_window": 16,
    },
    "gemma3": {
        "model_type": "gemma3_text", **SMALL, "num_hidden_layers": 30, "num_key_value_heads": 2,
        "head_dim": 16, "sliding_window": 16,
    },
    "falcon": {
        "model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 9,
        "num_attention_heads": 4, "vocab_size": 512, "multi_query": True, "parallel_attn": True,
    },
    "opt": {
        "model_type": "opt", "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 9,
        "num_attention_heads": 4, "vocab_size": 512, "word_embed_proj_dim": 64, "pad_token_id": 0,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", **SMALL, "num_key_value_heads": 2, "head_dim": 16,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    },
}  # fmt: skip


def _make_setup(name: str, *, layers: int | None = None, **changes) -> TrainingSetup:
    config = {**CONFIGS[name], **({"num_hidden_layers": layers} if layers else {})}
    lora = {"targets": "all-linear", "dtype": "float32", **changes.pop("lora", {})}
    wanted = {
        "method": "lora", "quant": None, "stack": "hf-trainer", "seq_len": 32, "micro_batch": 2,
        "optimizer": "adamw_torch", "lora": LoraSetup(**lora), **changes,
    }  # fmt: skip
    if wanted["method"] == "full":
        wanted["lora"] = None
    return TrainingSetup(model=SimpleNamespace(config=config, id="small"), **wanted)


@pytest.fixture
def make_setup():
    """A LoRA setup of the plain Trainer on a small model, with changes.

    `layers` sets the model's depth, `lora` changes the adapter's settings.
    """
    return _make_setup
