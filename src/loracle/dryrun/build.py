"""Builds the model as the training stack would hold it, on `meta`, and logs how it got there.

The classes are the real ones: transformers' model from the config, bitsandbytes' Linear4bit with a
real QuantState, PEFT's wrapping. Only the numbers inside are missing. The order in which the loader
allocates decides which segments the model leaves half full, so it is logged too: each quantised
weight is made on the card in 16 bits, packed, and the 16-bit copy is let go.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from loracle.domain.setup import TrainingSetup
from loracle.dryrun.recorder import Recorder
from loracle.errors import EngineError

ATTENTION_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")
KEPT = "quantised_weight"
DTYPES = {
    "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32,
}  # fmt: skip


def import_bitsandbytes() -> Any:
    """bitsandbytes, without waiting for compilers.

    Its fallback kernels for CPUs are wrapped in torch.compile when it is imported, which loads
    inductor: a second or two for code that a dry run never calls.
    """
    compile_ = torch.compile
    torch.compile = lambda function=None, **_: function or (lambda f: f)  # type: ignore[assignment]
    try:
        import bitsandbytes
    finally:
        torch.compile = compile_
    return bitsandbytes


def model_config(config: Mapping[str, object], attention: str) -> Any:
    """The transformers config of a config.json. Raises EngineError for an unknown architecture."""
    import_bitsandbytes()  # before transformers and PEFT do it
    from transformers import AutoConfig

    raw = dict(config)
    model_type = str(raw.pop("model_type", ""))
    try:
        made = AutoConfig.for_model(model_type, **raw)
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError("dryrun.unknown_architecture", model_type=model_type) from error
    made._attn_implementation = attention
    made.use_cache = False
    return made


def empty_model(setup: TrainingSetup, config: Any) -> Any:
    """The model's real class on `meta`."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                config, dtype=DTYPES[setup.base_dtype],
                attn_implementation=config._attn_implementation,
            )  # fmt: skip
    except (ValueError, AssertionError, ImportError) as error:
        raise EngineError(
            "dryrun.cannot_build", model_type=config.model_type, reason=str(error)[:200]
        ) from error


def layer_path(model: nn.Module, num_layers: int) -> str:
    """Where the decoder's layers are: the first ModuleList with one entry a layer."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return name
    raise EngineError("dryrun.no_layers", architecture=type(model).__name__)


def load_model(setup: TrainingSetup, model: Any, recorder: Recorder) -> Any:
    """The model as the stack holds it, wrapped, with requires_grad set and every storage logged."""
    if setup.method == "qlora":
        recorder.enter("load.quantise", None)
        _quantise(model, setup, recorder)
    recorder.enter("load.rest", None)
    _log_rest(model, recorder)
    for parameter in model.parameters():
        parameter.requires_grad_(setup.method == "full")
    if setup.method == "qlora":
        model.is_loaded_in_4bit = True
        model.is_quantized = True
        model.quantization_method = "bitsandbytes"
        if setup.kbit_upcast:
            recorder.enter("load.upcast", None)
            _upcast(model, recorder)
    if setup.method != "full":
        model = _wrap(model, setup, recorder)
    return model


def _quantise(model: nn.Module, setup: TrainingSetup, recorder: Recorder) -> None:
    bnb = import_bitsandbytes()
    double = setup.quant == "nf4-double"
    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, linear in list(model.named_modules()):
        if type(linear) is not nn.Linear or linear is head:
            continue
        out_features, in_features = linear.weight.shape
        count = out_features * in_features
        with recorder.inside(name), torch.device("meta"):
            new = bnb.nn.Linear4bit(
                in_features, out_features, bias=linear.bias is not None,
                compute_dtype=torch.bfloat16, compress_statistics=double, quant_type="nf4",
                device="meta",
            )  # fmt: skip
            drawn = recorder.born(count * 2, "load", "randn")
            scaled = recorder.born(count * 2, "load", "mul")
            recorder.died(drawn)
            packed, state = _pack(linear, double, recorder)
            new.weight = bnb.nn.Params4bit(
                packed, requires_grad=False, quant_state=state, compress_statistics=double,
                quant_type="nf4", bnb_quantized=True, module=new,
            )  # fmt: skip
            new.quant_state = state
            if linear.bias is not None:
                bias = torch.empty(out_features, dtype=linear.weight.dtype)
                recorder.watch(bias, "parameter", "bias")
                new.bias = nn.Parameter(bias, requires_grad=False)
            recorder.died(scaled)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent) if parent else model, leaf, new)


def _pack(linear: nn.Linear, double: bool, recorder: Recorder) -> tuple[torch.Tensor, Any]:
    """bitsandbytes.functional.quantize_4bit, allocation by allocation."""
    from bitsandbytes.functional import QuantState

    shape, dtype = linear.weight.shape, linear.weight.dtype
    count = linear.weight.numel()
    blocks = (count + 63) // 64
    scales = torch.empty(blocks)
    recorder.watch(scales, KEPT, "absmax")
    packed = torch.empty((count + 1) // 2, 1, dtype=torch.uint8)
    recorder.watch(packed, KEPT, "packed")
    code = torch.empty(16)
    recorder.watch(code, KEPT, "code")
    recorder.temporary(64, 4, op="get_4bit_type")
    if not double:
        return packed, QuantState(
            absmax=scales, shape=shape, dtype=dtype, blocksize=64, code=code, quant_type="nf4"
        )
    offset = torch.empty(())
    recorder.watch(offset, KEPT, "offset")
    centred = recorder.born(blocks * 4, "load", "absmax")
    if not recorder.once("dynamic map"):
        recorder.born(1024, KEPT, "dynamic map")
    second = torch.empty((blocks + 255) // 256)
    recorder.watch(second, KEPT, "absmax2")
    small = torch.empty(blocks, dtype=torch.uint8)
    recorder.watch(small, KEPT, "absmax")
    lookup = torch.empty(256)
    recorder.watch(lookup, KEPT, "code")
    recorder.died(centred)
    del scales
    nested = QuantState(absmax=second, code=lookup, blocksize=256, dtype=torch.float32)
    return packed, QuantState(
        absmax=small, shape=shape, dtype=dtype, blocksize=64, code=code, quant_type="nf4",
        offset=offset, state2=nested,
    )  # fmt: skip


def _log_rest(model: nn.Module, recorder: Recorder) -> None:
    """16-bit parameters in the order of the model, then the buffers."""
    for name, parameter in model.named_parameters():
        with recorder.inside(name.rpartition(".")[0]):
            if recorder.number_of(parameter) is None and parameter.dim() > 1:
                drawn = recorder.born(parameter.untyped_storage().nbytes(), "load", "randn")
                recorder.watch(parameter, "parameter", name.rpartition(".")[2])
                recorder.died(drawn)
            recorder.watch(parameter, "parameter", name.rpartition(".")[2])
    for name, buffer in model.named_buffers():
        with recorder.inside(name.rpartition(".")[0]):
            recorder.watch(buffer, "buffer", name.rpartition(".")[2])


def _upcast(model: nn.Module, recorder: Recorder) -> None:
    """prepare_model_for_kbit_training: everything that is not 4-bit goes to fp32."""
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            with recorder.inside(name.rpartition(".")[0]):
                wide = torch.empty_like(parameter, dtype=torch.float32, device="meta")
                recorder.watch(wide, "parameter", name.rpartition(".")[2])
                parameter.data = wide


def lora_targets(model: nn.Module, setup: TrainingSetup) -> Any:
    """PEFT's target_modules for the setup's word.

    loracle's trainer asks the model's shape which Linears are meant. The other stacks are given
    PEFT's own words: "all-linear", or the four usual names of attention, of which a model with
    fused projections may have only some.
    """
    assert setup.lora is not None
    targets = setup.lora.targets
    if not isinstance(targets, str):
        return list(targets)
    if setup.stack == "loracle" and hasattr(setup.model, "targets"):
        return list(setup.model.targets(targets))
    if targets != "attention":
        return targets if targets == "all-linear" else targets.split(",")
    leaves = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if leaves.isdisjoint(ATTENTION_NAMES) and hasattr(setup.model, "targets"):
        return list(setup.model.targets(targets))
    return list(ATTENTION_NAMES)


def _wrap(model: Any, setup: TrainingSetup, recorder: Recorder) -> Any:
    from peft import LoraConfig, get_peft_model

    lora = setup.lora
    assert lora is not None
    peft_config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, bias="none",
        task_type="CAUSAL_LM", target_modules=lora_targets(model, setup),
        use_rslora=lora.use_rslora, use_dora=lora.use_dora,
    )  # fmt: skip
    with torch.device("meta"):
        try:
            wrapped = get_peft_model(model, peft_config)
        except ValueError as error:
            raise EngineError("dryrun.no_targets", targets=str(lora.targets)) from error
    adapter_dtype = DTYPES[lora.dtype]
    recorder.enter("load.adapter", None)
    for name, parameter in adapters(wrapped):
        with recorder.inside(name.rpartition(".")[0]):
            if parameter.dtype != torch.float32:
                parameter.data = torch.empty_like(parameter, dtype=torch.float32, device="meta")
            recorder.watch(parameter, "adapter", name.rpartition(".")[2])
    if adapter_dtype != torch.float32:
        recorder.enter("load.narrow", None)
        for name, parameter in adapters(wrapped):
            with recorder.inside(name.rpartition(".")[0]):
                narrow = torch.empty_like(parameter, dtype=adapter_dtype, device="meta")
                recorder.watch(narrow, "adapter", name.rpartition(".")[2])
                parameter.data = narrow
    return wrapped


def adapters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Trainable parameters, in the order that the optimizer sees them."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter
