"""Which parts a setup has, each run once on the tape and remembered.

Profiles do not depend on batch or length (but for a few switches), so a search over knobs pays
for them once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from loracle.domain.model import Linear, ModelShape
from loracle.domain.setup import TrainingSetup
from loracle.errors import UnsupportedModel
from loracle.estimate.decoder import heads
from loracle.estimate.decoder.architectures import final_norm, kinds_of, run_layer
from loracle.estimate.decoder.layers import Layer
from loracle.estimate.decoder.profile import Profile, profile_part
from loracle.estimate.decoder.tape import Storage, Tape, Tensor, Weight
from loracle.estimate.params import effective_quant


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
    dora: bool
    kernel: str
    masked: bool
    checkpointed: bool
    fused_head: bool
    short: bool
    gradients: str = "all"  # "weights": none behind the first layer; "none": an evaluation


_REMEMBERED = 512
_profiles: dict[tuple[int, Setting, str], tuple[ModelShape, Profile]] = {}


def _remembered(
    shape: ModelShape, setting: Setting, part: str, make: Callable[[], Profile]
) -> Profile:
    """The profile of a part; the entry holds the shape, so that its id stays its own."""
    key = (id(shape), setting, part)
    known = _profiles.get(key)
    if known is None:
        if len(_profiles) >= _REMEMBERED:
            _profiles.pop(next(iter(_profiles)))
        known = _profiles[key] = (shape, make())
    return known[1]


def setting_of(setup: TrainingSetup, capability: tuple[int, int]) -> Setting:
    """The part of a setup that profiles depend on."""
    lora = setup.lora if setup.method != "full" else None
    upcast = setup.kbit_upcast and setup.quant is not None
    _refuse_expert_adapters(setup)
    quant = effective_quant(setup)
    kernel = attention_kernel(setup, capability)
    return Setting(
        stream="float32" if upcast else setup.base_dtype,
        dtype="float32" if upcast and quant is None else setup.base_dtype,
        quant=quant,
        compute=setup.autocast or setup.base_dtype,
        autocast=setup.autocast,
        trained=setup.method == "full",
        targets=frozenset(setup.model.targets(lora.targets)) if lora else frozenset(),
        rank=lora.rank if lora else 0,
        dropout=lora.dropout if lora else 0.0,
        lora_dtype=lora.dtype if lora else "float32",
        dora=lora.use_dora if lora else False,
        kernel=kernel,
        masked=setup.packing
        and kernel not in ("eager", "math")
        and setup.attention == "sdpa"
        and not lays_flat(setup, capability),
        checkpointed=setup.gradient_checkpointing,
        fused_head=setup.fused_head,
        short=setup.micro_step_tokens < heads.TILE_TOKENS,
    )


# PEFT 0.21 turns these names, on these models, into adapters on the routed experts (and on nothing
# else of that name): every expert's full weight is then made anew in each forward pass.
_EXPERT_NAMES = frozenset({"gate_proj", "up_proj", "down_proj"})
_EXPERTS_BY_NAME = frozenset({"deepseek_v2", "deepseek_v3"})


def _refuse_expert_adapters(setup: TrainingSetup) -> None:
    shape, lora = setup.model, setup.lora
    if lora is None or setup.method == "full" or shape.model_type not in _EXPERTS_BY_NAME:
        return
    if _EXPERT_NAMES & set(shape.targets(lora.targets)):
        raise UnsupportedModel(
            "error.shape.expert_adapters", hint="hint.shape.expert_adapters", model=shape.id
        )


EAGER_ONLY = frozenset({"gpt_oss", "bloom", "mpt"})  # transformers has no other path for them


NO_BOUNDS = frozenset({"stablelm"})  # its layer does not hand the documents' bounds to attention


def lays_flat(setup: TrainingSetup, capability: tuple[int, int]) -> bool:
    """Whether all rows of a micro-batch lie in one, without a mask.

    loracle's trainer does so on cards with the variable-length flash kernel, packed or not.
    """
    return (
        setup.stack == "loracle"
        and setup.attention == "sdpa"
        and capability >= (8, 0)
        and setup.model.attention_softcap is None
        and setup.model.model_type not in EAGER_ONLY | NO_BOUNDS
        and setup.autocast is not None
    )


def attention_kernel(setup: TrainingSetup, capability: tuple[int, int]) -> str:
    """cudnn, flash, efficient, math or eager: what runs on a card of this generation."""
    shape = setup.model
    if setup.attention == "eager" or shape.model_type in EAGER_ONLY:
        return "eager"
    if shape.model_type == "falcon":
        return _own_sdpa(shape, capability)
    if setup.attention == "flash_attention_2" or lays_flat(setup, capability):
        return "flash"
    return _sdpa(shape, capability)


def _sdpa(shape: ModelShape, capability: tuple[int, int]) -> str:
    """The choice of scaled_dot_product_attention."""
    if capability[0] in (9, 10) and shape.head_dim <= (256 if capability[0] == 9 else 128):
        return "cudnn"
    return "flash" if capability >= (8, 0) and shape.head_dim <= 256 else "efficient"


def _own_sdpa(shape: ModelShape, capability: tuple[int, int]) -> str:
    """Falcon calls SDPA itself, and leaves a single key head to be broadcast."""
    alone = shape.num_kv_heads != shape.num_heads and not shape.config.get(
        "new_decoder_architecture"
    )
    return "math" if alone else _sdpa(shape, capability)


def layer_profiles(
    setup: TrainingSetup, capability: tuple[int, int]
) -> tuple[list[Profile], list[int]]:
    """(profiles of the kinds of layer, the kind of each layer from first to last)."""
    profiles, order = _profiles_of(setup, setting_of(setup, capability))
    if _starts_without_gradient(setup):
        setting = replace(setting_of(setup, capability), gradients="weights")
        first, first_order = _profiles_of(setup, setting)
        profiles.append(first[first_order[0]])
        order[0] = len(profiles) - 1
    return profiles, order


def evaluation_profiles(
    setup: TrainingSetup, capability: tuple[int, int]
) -> tuple[list[Profile], list[int], Profile]:
    """The layers' kinds and order as above, and the head, in a forward pass that saves nothing."""
    setting = replace(setting_of(setup, capability), checkpointed=False, gradients="none")
    profiles, order = _profiles_of(setup, setting)
    return profiles, order, _head_profile(setup.model, setting, profiles[order[-1]].dtype)


def _starts_without_gradient(setup: TrainingSetup) -> bool:
    """Whether the embedding's output wants no gradient, so that the first norm saves nothing.

    Checkpointing needs one (`enable_input_require_grads`), and so asks transformers' own recipe.
    """
    asked = setup.gradient_checkpointing or setup.stack == "hf-trainer"
    return setup.method != "full" and not asked


def _profiles_of(setup: TrainingSetup, setting: Setting) -> tuple[list[Profile], list[int]]:
    shape = setup.model
    kinds = kinds_of(shape)
    window = shape.sliding_window
    cut = window is not None and setup.seq_len > window and setting.kernel not in ("eager", "flash")
    if setup.attention == "flash_attention_2":
        cut = False  # the kernel knows windows
    names = list(dict.fromkeys(kinds))
    profiles = []
    checkpoints = setup.checkpoint_every if setting.checkpointed else 1
    for kind in names:
        masked = setting.masked or (cut and kind == "sliding_attention")
        mine = replace(setting, masked=masked)
        profiles.append(_layer_profile(shape, mine, kind))
    order = [names.index(kind) for kind in kinds]
    if checkpoints == 1:
        return profiles, order
    plain = replace(setting, checkpointed=False)
    size = len(names)
    for kind in names:
        masked = setting.masked or (cut and kind == "sliding_attention")
        profiles.append(_layer_profile(shape, replace(plain, masked=masked), kind))
    return profiles, [
        at if index % checkpoints == 0 else size + at for index, at in enumerate(order)
    ]


def _layer_profile(shape: ModelShape, setting: Setting, kind: str) -> Profile:
    """A layer in the middle of the model: its input has the dtype of its output.

    LayerNorm returns fp32 under autocast and a 4-bit Linear returns its input's dtype, so the
    residual stream of such a model is fp32 from the second layer on.
    """

    def make(dtype: str) -> Profile:
        layer = _layer(shape, setting, kind)
        return profile_part(
            layer.tape, shape.hidden_size, dtype, lambda x: run_layer(layer, x, kind),
            checkpointed=setting.checkpointed, input_gradient=setting.gradients == "all",
        )  # fmt: skip

    def settled() -> Profile:
        profile = make(setting.stream)
        at_rest = profile.dtype == setting.stream or setting.gradients == "weights"
        return profile if at_rest else make(profile.dtype)

    return _remembered(shape, setting, kind, settled)


def _layer(shape: ModelShape, setting: Setting, kind: str) -> Layer:
    rows = rows_of(shape, kind)
    heads_here, kv_heads, head_dim = _heads(shape, rows)
    return Layer(
        tape=Tape(setting.autocast, records=setting.gradients != "none"),
        shape=shape,
        rows=rows,
        targets=setting.targets,
        stream=setting.stream,
        dtype=setting.dtype,
        quant=setting.quant,
        compute=setting.compute,
        trained=setting.trained,
        rank=setting.rank,
        dropout=setting.dropout,
        lora_dtype=setting.lora_dtype,
        dora=setting.dora,
        kernel=setting.kernel,
        masked=setting.masked,
        heads=heads_here,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def rows_of(shape: ModelShape, kind: str) -> dict[str, Linear]:
    """The Linear rows of one kind of layer by the names that its code uses.

    A leaf name that stands twice is told apart by its parent (`attn.c_proj`, `mlp.c_proj`);
    shared experts go under `shared.`; of two shapes of one path (Gemma 4) the first belongs to
    sliding, the second to full attention.
    """
    rows: dict[str, Linear] = {}
    paths: dict[str, int] = {}
    leaves = [row.path.rsplit(".", 2)[-2:] for row in shape.linears if row.role != "head"]
    twice = {leaf[-1] for leaf in leaves if sum(other[-1] == leaf[-1] for other in leaves) > 1}
    full = kind == "full_attention"
    has_two = len({row.path for row in shape.linears}) < len(shape.linears)
    for row in shape.linears:
        if row.role == "head":
            continue
        seen = paths[row.path] = paths.get(row.path, 0) + 1
        if has_two and not full and seen > 1:
            continue
        name = row.name
        if ".shared_expert" in row.path and row.name != "shared_expert_gate":
            name = f"shared.{row.name}"
        elif row.name in twice and not has_two and not shape.num_experts:
            name = ".".join(row.path.rsplit(".", 2)[-2:])
        rows[name] = row
    if has_two and full and not any(r.name == "v_proj" and r.count < shape.num_layers // 2
                                    for r in shape.linears):  # fmt: skip
        rows.pop("v_proj", None)
    return rows


def _heads(shape: ModelShape, rows: Mapping[str, Linear]) -> tuple[int, int, int]:
    """Query heads, key-value heads and head size of these rows."""
    if shape.model_type != "gemma4_text":
        return shape.num_heads, shape.num_kv_heads, shape.head_dim
    dim = rows["q_proj"].out_features // shape.num_heads
    return shape.num_heads, rows["k_proj"].out_features // dim, dim


def head_profile(setup: TrainingSetup, capability: tuple[int, int]) -> Profile:
    """The last norm, the output head and the loss."""
    shape, setting = setup.model, setting_of(setup, capability)
    profiles, order = layer_profiles(setup, capability)
    return _head_profile(shape, setting, profiles[order[-1]].dtype)


def _head_profile(shape: ModelShape, setting: Setting, dtype: str) -> Profile:
    return _remembered(shape, setting, f"head {dtype}", lambda: _head(shape, setting, dtype))


def _head(shape: ModelShape, setting: Setting, dtype: str) -> Profile:
    layer = _layer(shape, setting, "full_attention")
    t = layer.tape
    head = Weight(t, float(shape.embedding_params), setting.stream, setting.trained)
    outputs: list[object] = []

    def run(x: Tensor) -> Tensor:
        normed = final_norm(layer, x)
        del x
        if setting.fused_head:
            return heads.fused_loss(t, normed, head, shape, setting.short)
        scores, logits = heads.plain_loss(t, normed, head, shape)
        outputs.append(logits)
        return scores

    def convert() -> None:
        """accelerate's convert_outputs_to_fp32, then the trainer lets go of the outputs."""
        if outputs and setting.autocast:
            copy = Storage(t, (0.0, 4.0 * shape.vocab_size, 0.0), "logits")
            outputs.clear()
            del copy
        outputs.clear()

    return profile_part(
        t, shape.hidden_size, dtype, run, after_forward=convert,
        input_gradient=setting.gradients == "all",
    )  # fmt: skip
