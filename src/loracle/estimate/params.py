"""What is trained, and what lies on the card before the first step.

Adapters are counted per Linear row of the shape: rank x (in + out) each. Residents follow the
storage of the libraries: bitsandbytes' NF4 blocks with their scales, 16-bit rests, PEFT's fp32
upcast, optimizer states by tensor size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from loracle.domain.model import Linear, ModelShape
from loracle.domain.setup import TrainingSetup

ITEM = {"bfloat16": 2, "float16": 2, "float32": 4}
BLOCK = 512  # the CUDA caching allocator rounds every tensor up to this

NF4_BLOCK, SCALE_BLOCK = 64, 256  # weights a scale, scales a second-level scale
EIGHT_BIT_FROM = 4096  # elements from which bitsandbytes keeps an optimizer state in 8 bits
PAGED_FROM = 100_000  # elements from which it pages one


# Their Linear layers are subclasses, and transformers quantises exact nn.Linear and Conv1D only
# (integrations/bitsandbytes.py, replace_with_bnb_linear): a quantised Falcon stays in 16 bits.
NEVER_QUANTISED = frozenset({"falcon"})


def effective_quant(setup: TrainingSetup) -> str | None:
    """The quantisation that the stack really applies to the base's Linear layers."""
    return None if setup.model.model_type in NEVER_QUANTISED else setup.quant


def rounded(num_bytes: float) -> int:
    """Bytes that the caching allocator hands out for a request."""
    return -(-int(num_bytes) // BLOCK) * BLOCK


def resident(num_bytes: float) -> int:
    """Bytes that a long-lived tensor holds.

    From 10 MiB on a tensor gets a segment of whole 2 MiB pages of its own, and what is left of
    the last page is split off only where it is more than 1 MiB (CUDACachingAllocator.cpp,
    should_split). Packed 4-bit weights move into what their 16-bit originals left behind, so this
    is for the 16-bit and fp32 tensors only.
    """
    size = rounded(num_bytes)
    if size < 10 << 20:
        return size
    pages = -(-size // (2 << 20)) * (2 << 20)
    return pages if pages - size <= 1 << 20 else size


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a role the adapters reach."""

    role: str
    hit: int  # Linear layers with an adapter
    total: int

    @property
    def share(self) -> float:
        """hit / total, 1 where there is nothing to hit."""
        return self.hit / self.total if self.total else 1.0


def target_rows(shape: ModelShape, targets: str | tuple[str, ...]) -> tuple[Linear, ...]:
    """The Linear rows that get an adapter (never the head)."""
    names = frozenset(shape.targets(targets))
    return tuple(row for row in shape.linears if row.name in names and row.role != "head")


def coverage(shape: ModelShape, targets: str | tuple[str, ...]) -> tuple[Coverage, ...]:
    """Reached Linear layers by role, for the roles that the shape has.

    Names that match nothing raise nothing here: the planner compares `target_rows` with what was
    asked for.
    """
    hit = {row.path for row in target_rows(shape, targets)}
    roles = dict.fromkeys(row.role for row in shape.linears if row.role != "head")
    return tuple(
        Coverage(
            role,
            sum(row.count for row in shape.linears if row.role == role and row.path in hit),
            sum(row.count for row in shape.linears if row.role == role),
        )
        for role in roles
    )


def adapted_rows(setup: TrainingSetup) -> tuple[Linear, ...]:
    """The Linear rows that carry an adapter; none where there are no adapters."""
    if setup.lora is None or setup.method == "full":
        return ()
    return target_rows(setup.model, setup.lora.targets)


def adapter_tensors(setup: TrainingSetup) -> Iterator[tuple[int, int]]:
    """(elements, how many such tensors) of every adapter matrix; DoRA adds a magnitude vector."""
    if setup.lora is None:
        return
    rank = setup.lora.rank
    for row in adapted_rows(setup):
        yield rank * row.in_features, row.count
        yield rank * row.out_features, row.count
        if setup.lora.use_dora:
            yield row.out_features, row.count


def trainable_params(setup: TrainingSetup) -> int:
    """Elements that get a gradient."""
    if setup.method == "full":
        return setup.model.num_params
    return sum(size * count for size, count in adapter_tensors(setup))


def trained(setup: TrainingSetup) -> tuple[int, int]:
    """(parameters, tensors) that the optimizer updates."""
    shape = setup.model
    if setup.method == "full":
        norms = shape.num_layers * shape.norms_per_layer + 1
        return shape.num_params, sum(row.count for row in shape.linears) + norms
    return trainable_params(setup), sum(count for _, count in adapter_tensors(setup))


def base_tensors(shape: ModelShape) -> Iterator[tuple[int, int, str]]:
    """(elements, how many, kind) of the base's tensors; kinds: linear, bias, rest, embedding.

    `linear` are the weights that bitsandbytes quantises; the head, embeddings, norms, routers and
    fused experts are `rest` or `embedding`.
    """
    yield shape.embedding_params, 1, "embedding"
    for row in shape.linears:
        size = row.in_features * row.out_features
        if row.role == "head":
            if not shape.tied_embeddings:
                yield size, 1, "rest"
        else:
            yield size, row.count, "linear"
        if row.bias:
            yield row.out_features, row.count, "bias"
    if shape.fused_expert_params:
        per_layer = shape.fused_expert_params // max(1, shape.num_moe_layers)
        # gate and up in one tensor, down in the other: two thirds and one third
        yield per_layer * 2 // 3, shape.num_moe_layers, "rest"
        yield per_layer - per_layer * 2 // 3, shape.num_moe_layers, "rest"
    if shape.router_params:
        yield shape.router_params // max(1, shape.num_moe_layers), shape.num_moe_layers, "rest"
    norms = max(1, shape.num_layers * shape.norms_per_layer + 1)
    yield shape.other_params // norms, norms, "rest"


def nf4_bytes(elements: int, double: bool) -> int:
    """bitsandbytes' Params4bit: packed halves, block scales, and the tables beside them.

    Double quantisation: u8 scales, one fp32 second-level scale per 256, the fp32 code of 16, the
    second code of 256 and an offset; each is a tensor of its own. Source:
    bitsandbytes/functional.py, quantize_4bit.
    """
    packed, scales = (elements + 1) // 2, -(-elements // NF4_BLOCK)
    code = rounded(16 * 4)
    if not double:
        return rounded(packed) + rounded(scales * 4) + code
    second = -(-scales // SCALE_BLOCK)
    return (
        rounded(packed) + rounded(scales) + rounded(second * 4) + code + rounded(256 * 4)
        + rounded(4)
    )  # fmt: skip


def quantised_bytes(setup: TrainingSetup) -> int:
    """The base's quantised Linear weights; 0 without quantisation.

    LLM.int8 keeps one byte a weight and one fp32 scale a row.
    """
    quant = effective_quant(setup)
    if quant is None:
        return 0
    total = 0
    for row in setup.model.linears:
        if row.role == "head":
            continue
        elements = row.in_features * row.out_features
        if quant == "int8":
            total += row.count * (resident(elements) + rounded(row.out_features * 4))
        else:
            total += row.count * nf4_bytes(elements, quant == "nf4-double")
    return total


def unquantised_bytes(setup: TrainingSetup) -> int:
    """What stays in 16 bits, or goes to fp32 with PEFT's kbit upcast."""
    rest = 4 if setup.kbit_upcast and setup.quant else ITEM[setup.base_dtype]
    linear = 0 if effective_quant(setup) else rest
    total = 0
    for elements, count, kind in base_tensors(setup.model):
        # Linear4bit puts its bias back to the compute dtype at the first forward pass.
        item = {"linear": linear, "bias": ITEM[setup.base_dtype]}.get(kind, rest)
        total += count * resident(elements * item) if item else 0
    return total


def adapter_bytes(setup: TrainingSetup) -> int:
    """Adapter weights in their dtype."""
    item = ITEM[setup.lora.dtype] if setup.lora else 0
    return sum(count * rounded(size * item) for size, count in adapter_tensors(setup))


def trained_tensors(setup: TrainingSetup) -> Iterator[tuple[int, int, int, bool]]:
    """(elements, how many, bytes each, is an embedding) of every tensor with a gradient."""
    if setup.method == "full":
        item = ITEM[setup.base_dtype]
        for elements, count, kind in base_tensors(setup.model):
            yield elements, count, item, kind == "embedding"
        return
    item = ITEM[setup.lora.dtype] if setup.lora else 4
    for elements, count in adapter_tensors(setup):
        yield elements, count, item, False


def optimizer_bytes(setup: TrainingSetup) -> tuple[int, int]:
    """(bytes in torch's allocator, bytes in CUDA unified memory) of the optimizer's states.

    AdamW keeps two states in the parameter's dtype. bitsandbytes keeps them in 8 bits with one
    fp32 scale per 256 elements (in fp32 for small tensors and embeddings), and pages tensors of
    100,000 elements or more. Sources: torch/optim/adamw.py, bitsandbytes/optim/optimizer.py,
    transformers' Trainer (embedding override).
    """
    name = setup.optimizer
    on_card = managed = 0
    if name == "sgd":
        return 0, 0
    eight, paged = name.endswith("8bit"), name.startswith("paged")
    for elements, count, item, is_embedding in trained_tensors(setup):
        if name.startswith("adamw_torch"):
            on_card += count * 2 * rounded(elements * item)
            continue
        small = not eight or elements < EIGHT_BIT_FROM or is_embedding
        state = 2 * (rounded(elements * 4) if small else rounded(elements))
        if paged and elements >= PAGED_FROM:
            managed += count * state
        else:
            on_card += count * state
        if not small:
            on_card += count * 2 * rounded(-(-elements // 256) * 4)
    return on_card, managed


def gradient_bytes(setup: TrainingSetup) -> int:
    """Every gradient at once, in the parameters' dtype."""
    return sum(
        count * rounded(elements * item) for elements, count, item, _ in trained_tensors(setup)
    )


@dataclass(frozen=True, slots=True)
class Totals:
    """Every sum of a setup that does not depend on batch or length, in bytes."""

    base: int
    adapters: int
    optimizer: int
    managed: int
    gradients: int
    trainable: int


_REMEMBERED = 512
_totals: dict[object, tuple[ModelShape, Totals]] = {}


def totals(setup: TrainingSetup) -> Totals:
    """The sums, remembered: a search over batches asks for the same ones again and again."""
    key = (
        id(setup.model), setup.method, setup.quant, setup.kbit_upcast, setup.base_dtype,
        setup.optimizer, setup.lora,
    )  # fmt: skip
    known = _totals.get(key)
    if known is None:
        if len(_totals) >= _REMEMBERED:
            _totals.pop(next(iter(_totals)))
        on_card, managed = optimizer_bytes(setup)
        known = _totals[key] = (
            setup.model,  # held, so that its id stays its own
            Totals(
                base=quantised_bytes(setup) + unquantised_bytes(setup),
                adapters=adapter_bytes(setup),
                optimizer=on_card,
                managed=managed,
                gradients=gradient_bytes(setup),
                trainable=trainable_params(setup),
            ),
        )
    return known[1]
