"""The model as it is trained: base weights as the setup stores them, special tokens, adapters."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loracle.domain.setup import TrainingSetup
from loracle.errors import InputError
from loracle.jobs.runs import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_RESERVED_PADS = (
    "<|finetune_right_pad_id|>", "<|pad|>", "<pad>", "[PAD]", "<|endoftext|>", "<unk>", "<|unk|>",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What ends an answer, what fills a batch; `pad_chosen` where the tokenizer had no good pad."""

    stop_ids: frozenset[int]
    pad_token: str
    pad_token_id: int
    pad_chosen: bool


def load_tokenizer(source: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of a folder or hub id; raises InputError E013 where there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise InputError(
            "error.train.no_tokenizer", code="E013", model=source, cause=_first_line(error)
        ) from error


def generation_eos(source: str) -> object:
    """The end tokens that the model's generation config names (Llama 3 has three)."""
    path = Path(source) / "generation_config.json"
    if path.is_file():
        return read_json(path).get("eos_token_id")
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(source).eos_token_id
    except OSError:
        return None


def special_tokens(tokenizer: "PreTrainedTokenizerBase", generation_eos: object) -> SpecialTokens:
    """Stop tokens, and a pad token that ends nothing.

    A pad that is also the end of text gets masked away by collators that mask by pad id, and the
    model never learns to stop. Where the tokenizer has none, a reserved token is taken. Raises
    InputError E063 where the tokenizer knows no end.
    """
    from loracle.jobs.train.templates import stop_token_ids

    stops = stop_token_ids(tokenizer, generation_eos)
    if not stops:
        raise InputError("error.train.no_eos", code="E063", hint="hint.train.no_eos")
    chosen = tokenizer.pad_token_id is None or tokenizer.pad_token_id in stops
    if chosen:
        tokenizer.pad_token = _reserved_pad(tokenizer, stops)
    assert tokenizer.pad_token_id is not None
    return SpecialTokens(
        frozenset(stops), str(tokenizer.pad_token), int(tokenizer.pad_token_id), chosen
    )


def load_base(source: str, setup: TrainingSetup, device: torch.device) -> "PreTrainedModel":
    """Base weights on the device in the setup's dtype or 4 or 8 bits; kernels as the setup says.

    An architecture that SDPA cannot compute (GPT-OSS with its sinks) comes with its own attention.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=getattr(torch, setup.base_dtype),
        attn_implementation=None if setup.attention == "sdpa" else setup.attention,
        device_map={"": device} if device.type == "cuda" else None,
        **_quantised(setup),
    )
    model.config.use_cache = False
    model.requires_grad_(setup.method == "full")
    if setup.kbit_upcast and setup.quant is not None:
        from peft import prepare_model_for_kbit_training

        prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if device.type == "cpu":
        _keep_trainable(model)
    return model


def attention_of(model: "PreTrainedModel") -> str:
    """The attention kernel that the model was loaded with."""
    return str(model.config.get_text_config()._attn_implementation)


def add_adapters(model: "PreTrainedModel", setup: TrainingSetup) -> Any:
    """The PEFT model with the setup's adapters, or the model itself for full fine-tuning."""
    if setup.lora is None:
        return model
    from peft import LoraConfig, get_peft_model

    lora = setup.lora
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=list(setup.model.targets(lora.targets)),
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config)
    cast_adapters(adapted, setup)
    return adapted


def cast_adapters(model: torch.nn.Module, setup: TrainingSetup) -> None:
    """Adapter weights to the setup's dtype; DoRA's magnitudes stay fp32, bf16 would freeze them."""
    if setup.lora is None:
        return
    dtype = getattr(torch, setup.lora.dtype)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            exact = "lora_magnitude_vector" in name
            parameter.data = parameter.data.to(torch.float32 if exact else dtype)


def _keep_trainable(model: "PreTrainedModel") -> None:
    """Without a card, bitsandbytes repacks 4-bit weights at the first evaluation, for good.

    What comes after has no gradient: the adapters would stand still without a word.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def _quantised(setup: TrainingSetup) -> dict[str, Any]:
    if setup.quant is None:
        return {}
    from transformers import BitsAndBytesConfig

    compute = getattr(torch, setup.base_dtype)
    if setup.quant == "int8":
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=setup.quant == "nf4-double",
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_quant_storage=compute if setup.parallel == "fsdp" else torch.uint8,
    )
    return {"quantization_config": config}


def _reserved_pad(tokenizer: "PreTrainedTokenizerBase", stops: set[int]) -> str:
    """A special token that stands for nothing in the model's texts, else the unknown token."""
    special = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
    named = [text for text in _RESERVED_PADS if text in tokenizer.get_vocab()]
    reserved = [text for text in special if "reserved" in text or "unused" in text]
    for text in (*named, *reserved, *special):
        if tokenizer.convert_tokens_to_ids(text) not in stops and text != tokenizer.bos_token:
            return text
    return str(tokenizer.eos_token)  # labels are explicit here, so even this hides nothing


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
