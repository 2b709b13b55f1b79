"""The base as QLoRA saw it: weights sent through NF4 and back, where training had them in NF4.

An adapter trained on a 4-bit base has learned to correct that base's rounding. Merged into the
16-bit base it corrects an error that is not there; merged into the dequantised one it is what was
trained, at the price of the rounding. Which is better is a matter of measurement.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loracle.errors import MissingExtra

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Nf4:
    """How the base was stored during training."""

    double: bool = True
    block_size: int = 64


def quantised_modules(folder: Path, nf4: Nf4) -> frozenset[str]:
    """Names of the modules that transformers puts in 4 bits for this model.

    Its own quantizer decides on a model without weights, so head, tied weights and fused experts
    stay out as they do in training.
    """
    try:
        import bitsandbytes
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
        from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
    except ImportError as error:
        raise MissingExtra("train", "bitsandbytes") from error
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        how = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=nf4.double
        )
        Bnb4BitHfQuantizer(how, pre_quantized=False)._process_model_before_weight_loading(model, {})
    kind = bitsandbytes.nn.Linear4bit
    return frozenset(name for name, module in model.named_modules() if isinstance(module, kind))


def round_trip(weight: "Tensor", nf4: Nf4) -> "Tensor":
    """The weight after NF4 and back, in its own dtype, as a training step dequantises it."""
    from bitsandbytes import functional

    packed, state = functional.quantize_4bit(
        weight, blocksize=nf4.block_size, compress_statistics=nf4.double, quant_type="nf4"
    )
    return functional.dequantize_4bit(packed, state).to(weight.dtype)
