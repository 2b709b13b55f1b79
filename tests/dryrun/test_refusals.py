"""What the dry run will not predict, it says."""

import pytest

from loracle.dryrun.trace import trace
from loracle.errors import EngineError


def refused(setup):
    with pytest.raises(EngineError) as refusal:
        trace(setup)
    return refusal.value.message


def test_an_architecture_that_transformers_does_not_know(make_setup):
    setup = make_setup("llama")
    setup.model.config = {"model_type": "no_such_model"}
    assert refused(setup) == "dryrun.unknown_architecture"


def test_a_kernel_that_the_model_does_not_have(make_setup):
    setup = make_setup("llama")
    setup.model.config = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4}
    assert refused(setup) == "dryrun.cannot_build"


def test_targets_that_hit_nothing(make_setup):
    assert refused(make_setup("llama", lora={"targets": "no_proj"})) == "dryrun.no_targets"


def test_sharded_training(make_setup):
    assert refused(make_setup("llama", num_gpus=2, parallel="fsdp")) == "dryrun.sharded"


def test_int8_bases(make_setup):
    assert refused(make_setup("llama", method="qlora", quant="int8")) == "dryrun.int8"


def test_packed_rows_with_values_narrower_than_queries(make_setup):
    """torch's variable-length kernel has one width for all three (MLA has two)."""
    setup = make_setup("llama", stack="loracle", lora={"targets": "o_proj"})
    setup.model.config = {
        "model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 128,
        "num_hidden_layers": 2, "first_k_dense_replace": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 16,
    }  # fmt: skip
    assert refused(setup) == "dryrun.head_widths"


def test_layers_that_drop_the_bounds_of_packed_rows(make_setup):
    setup = make_setup("llama", stack="loracle", lora={"targets": "o_proj"})
    setup.model.config = {
        "model_type": "stablelm", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    }  # fmt: skip
    assert refused(setup) == "dryrun.no_bounds"


def test_a_model_whose_code_stops_without_values(make_setup):
    """Heads that do not divide the width: transformers builds it, and its forward pass fails."""
    setup = make_setup("llama")
    setup.model.config = {**setup.model.config, "num_key_value_heads": 3}
    with pytest.raises(EngineError) as refusal:
        trace(setup)
    assert refusal.value.message == "dryrun.cannot_run"
    assert refusal.value.code == "E040"
    assert refusal.value.hints == ("hint.dryrun.formula",)
    assert isinstance(refusal.value.__cause__, RuntimeError)
