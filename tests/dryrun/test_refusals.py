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
