"""Which parts a setup has, each profiled once and remembered.

Profiles do not depend on batch or length, so a search over knobs pays for them once.
"""

from dataclasses import dataclass

from loracle.domain.model import ModelShape
from loracle.domain.setup import TrainingSetup
from loracle.estimate import heads
from loracle.estimate import operations as op
from loracle.estimate.layers import Layer, run_layer
from loracle.estimate.profile import Profile, profile_part
from loracle.estimate.tape import Tape, Tensor, Weight


@dataclass(frozen=True, slots=True)
class Setting:
    """What of a setup changes a profile; hashable."""

    stream: str
    dtype: str
    quant: str | None
    compute: str
    autocast: str | None
    trained: bool
    targets: frozenset[str]
    rank: int
    dropout: float
    lora_dtype: str
    kernel: str
    checkpointed: bool
    fused_head: bool
    short: bool


_REMEMBERED = 256
_profiles: dict[tuple[int, Setting, str], tuple[ModelShape, Profile]] = {}


def _remember(shape: ModelShape, setting: Setting, part: str, profile: Profile) -> Profile:
    if len(_profiles) >= _REMEMBERED:
        _profiles.pop(next(iter(_profiles)))
    _profiles[id(shape), setting, part] = (shape, profile)  # the shape keeps its id alive
    return profile


def setting_of(setup: TrainingSetup, capability: tuple[int, int]) -> Setting:
    """The part of a setup that profiles depend on."""
    lora = setup.lora if setup.method != "full" else None
    upcast = setup.kbit_upcast and setup.quant is not None
    return Setting(
        stream="float32" if upcast else setup.base_dtype,
        dtype=setup.base_dtype,
        quant=setup.quant,
        compute=setup.autocast or setup.base_dtype,
        autocast=setup.autocast,
        trained=setup.method == "full",
        targets=frozenset(setup.model.targets(lora.targets)) if lora else frozenset(),
        rank=lora.rank if lora else 0,
        dropout=lora.dropout if lora else 0.0,
        lora_dtype=lora.dtype if lora else "float32",
        kernel=attention_kernel(setup, capability),
        checkpointed=setup.gradient_checkpointing,
        fused_head=setup.fused_head,
        short=setup.micro_step_tokens < heads.TILE_TOKENS,
    )


def attention_kernel(setup: TrainingSetup, capability: tuple[int, int]) -> str:
    """cudnn, flash, efficient or eager: what scaled_dot_product_attention chooses on a card."""
    if setup.attention == "eager":
        return "eager"
    if setup.attention == "flash_attention_2":
        return "flash"
    if capability[0] in (9, 10):
        return "cudnn"
    return "flash" if capability >= (8, 0) else "efficient"


def layer_profiles(
    setup: TrainingSetup, capability: tuple[int, int]
) -> tuple[list[Profile], list[int]]:
    """(profiles of the kinds of layer, the kind of each layer from first to last)."""
    shape, setting = setup.model, setting_of(setup, capability)
    known = _profiles.get((id(shape), setting, "layer"))
    if known is not None:
        return [known[1]], [0] * shape.num_layers
    layer = _layer(shape, setting)
    profile = profile_part(
        layer.tape, shape.hidden_size, setting.stream, lambda x: run_layer(layer, x),
        checkpointed=setting.checkpointed,
    )  # fmt: skip
    _remember(shape, setting, "layer", profile)
    return [profile], [0] * shape.num_layers


def _layer(shape: ModelShape, setting: Setting) -> Layer:
    return Layer(
        tape=Tape(setting.autocast),
        shape=shape,
        rows={row.name: row for row in shape.linears},
        targets=setting.targets,
        stream=setting.stream,
        dtype=setting.dtype,
        quant=setting.quant,
        compute=setting.compute,
        trained=setting.trained,
        rank=setting.rank,
        dropout=setting.dropout,
        lora_dtype=setting.lora_dtype,
        kernel=setting.kernel,
    )


def head_profile(setup: TrainingSetup, capability: tuple[int, int] = (8, 0)) -> Profile:
    """The last norm, the output head and the loss."""
    shape, setting = setup.model, setting_of(setup, capability)
    known = _profiles.get((id(shape), setting, "head"))
    if known is not None:
        return known[1]
    layer = _layer(shape, setting)
    t = layer.tape
    head = Weight(
        t, float(shape.vocab_size * (shape.embedding_width or shape.hidden_size)),
        setting.stream, setting.trained,
    )  # fmt: skip
    outputs: list[object] = []

    def run(x: Tensor) -> Tensor:
        normed = op.rms_norm(t, x, layer.norm_weight("final", shape.hidden_size))
        del x
        if setting.fused_head:
            return heads.fused_loss(t, normed, head, shape, setting.short)
        scores, logits = heads.plain_loss(t, normed, head, shape)
        outputs.append(logits)
        return scores

    def convert() -> None:
        """accelerate's convert_outputs_to_fp32, then the trainer lets go of the outputs."""
        if outputs and setting.autocast:
            copy = op.Storage(t, (0.0, 4.0 * shape.vocab_size, 0.0), "logits")
            outputs.clear()
            del copy
        outputs.clear()

    profile = profile_part(t, shape.hidden_size, setting.stream, run, after_forward=convert)
    return _remember(shape, setting, "head", profile)
