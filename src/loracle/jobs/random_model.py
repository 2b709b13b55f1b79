"""A model of the right shape with random weights, held as training would hold it.

For benchmarks: no weights are downloaded, and nothing but the shape decides memory and speed.
The model is built on `meta` and filled layer by layer, so that a 4-bit 70B never exists in 16
bits. Parameters are (vocab, hidden), (out, in) or vectors, as transformers names them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from loracle.domain.setup import TrainingSetup
from loracle.errors import UnsupportedModel

_SPREAD = 0.02  # standard deviation of the weights: losses stay finite at any depth


def random_model(setup: TrainingSetup, device: torch.device) -> Any:
    """The base model of a setup on a device, quantised where the setup says so, frozen for LoRA.

    Raises UnsupportedModel (E033) for an architecture that transformers cannot build.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = dict(setup.model.config)
    model_type = str(raw.pop("model_type", ""))
    dtype = getattr(torch, setup.base_dtype)
    kernel = "sdpa" if setup.attention == "flash_attention_2" else setup.attention
    try:
        config = AutoConfig.for_model(model_type, **raw)
        config.use_cache = False
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=kernel
            )
    except (ValueError, KeyError, TypeError) as error:
        raise UnsupportedModel("error.bench.cannot_build", model_type=model_type) from error
    if setup.quant is not None:
        _quantise(model, setup, device, dtype)
    _fill(model, device, trainable=setup.method == "full")
    _rebuild_positions(model, config, device)
    model.tie_weights()
    if setup.quant is not None:
        model.is_loaded_in_4bit = setup.quant.startswith("nf4")
        model.is_loaded_in_8bit = setup.quant == "int8"
    return model


def _each(
    model: nn.Module, wanted: Callable[[str, nn.Module], bool]
) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if wanted(name, module)]


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    parent, _, leaf = name.rpartition(".")
    return (model.get_submodule(parent) if parent else model), leaf


def _quantise(model: Any, setup: TrainingSetup, device: torch.device, dtype: torch.dtype) -> None:
    """Every Linear but the head becomes bitsandbytes' own, packed from random numbers."""
    head = model.get_output_embeddings()
    for name, linear in _each(model, lambda _, m: isinstance(m, nn.Linear) and m is not head):
        weight = torch.randn(
            linear.out_features, linear.in_features, device=device, dtype=dtype
        ).mul_(_SPREAD)
        packed = _packed(linear, weight, setup, dtype, device)
        if linear.bias is not None:
            bias = torch.zeros(linear.out_features, device=device, dtype=dtype)
            packed.bias = nn.Parameter(bias, requires_grad=False)
        parent, leaf = _place(model, name)
        setattr(parent, leaf, packed)


def _packed(
    linear: nn.Linear, weight: torch.Tensor, setup: TrainingSetup, dtype: torch.dtype,
    device: torch.device,
) -> nn.Linear:  # fmt: skip
    import bitsandbytes as bnb

    with torch.device("meta"):
        if setup.quant == "int8":
            made = bnb.nn.Linear8bitLt(
                linear.in_features, linear.out_features, bias=linear.bias is not None,
                has_fp16_weights=False,
            )  # fmt: skip
        else:
            made = bnb.nn.Linear4bit(
                linear.in_features, linear.out_features, bias=linear.bias is not None,
                compute_dtype=dtype, quant_type="nf4",
                compress_statistics=setup.quant == "nf4-double",
            )  # fmt: skip
    if setup.quant == "int8":
        made.weight = bnb.nn.Int8Params(
            weight.cpu(), requires_grad=False, has_fp16_weights=False
        ).to(device)
    else:
        made.weight = bnb.nn.Params4bit(
            weight, requires_grad=False, quant_type="nf4",
            compress_statistics=setup.quant == "nf4-double", module=made,
        ).to(device)  # fmt: skip
    return made


def _fill(model: nn.Module, device: torch.device, *, trainable: bool) -> None:
    """Random numbers for matrices, ones for vectors (norms), zeros for other buffers."""
    for name, parameter in list(model.named_parameters()):
        if parameter.device.type != "meta":
            continue
        parent, leaf = _place(model, name)
        if parameter.dim() > 1:
            values = torch.randn(parameter.shape, device=device, dtype=parameter.dtype)
            values.mul_(_SPREAD)
        else:
            values = torch.ones(parameter.shape, device=device, dtype=parameter.dtype)
        setattr(parent, leaf, nn.Parameter(values, requires_grad=trainable))
    for name, buffer in list(model.named_buffers()):
        if buffer.device.type == "meta":
            parent, leaf = _place(model, name)
            parent.register_buffer(
                leaf, torch.zeros(buffer.shape, device=device, dtype=buffer.dtype), persistent=False
            )


def _rebuild_positions(model: nn.Module, config: Any, device: torch.device) -> None:
    """Rotary frequencies are computed when the module is made, so it is made again."""
    for name, module in _each(model, lambda _, m: "RotaryEmbedding" in type(m).__name__):
        given = getattr(module, "config", None) or config
        parent, leaf = _place(model, name)
        setattr(parent, leaf, type(module)(config=given).to(device))
