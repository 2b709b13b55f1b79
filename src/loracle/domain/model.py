"""The shape of a model: what the laws need to know of it, and the config that rebuilds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loracle.domain.gpu import Sourced


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """One kind of nn.Linear in the model.

    `role`: attention, linear_attention, mlp, shared_expert, router, head, other.
    `path` has N where the layer index goes. `name` is the leaf that LoRA targets match on.
    """

    name: str
    role: str
    count: int
    in_features: int
    out_features: int
    bias: bool
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder's shape. `config` holds the repo's own key names and feeds AutoConfig.for_model.

    Counts are of the text model; tied embeddings count once. `fused_expert_params` are routed
    experts that transformers 5 keeps as 3-D parameters: bitsandbytes does not quantise them.
    `keeps_apart` names the layouts in which packed documents do not see each other: `flat` (one row
    with the documents' bounds, for a variable-length kernel), `rows` (a block mask from positions).
    """

    id: str
    model_type: str
    config: Mapping[str, object]
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied_embeddings: bool
    mlp_gated: bool
    norm: str  # rmsnorm, layernorm
    norms_per_layer: int = 2
    qk_norm: bool = False
    parallel_residual: bool = False  # attention and MLP read the same norm
    activation: str = "silu"
    embedding_width: int | None = None  # where it is not hidden_size (OPT-350m)
    max_positions: int | None = None
    sliding_window: int | None = None
    logit_softcap: float | None = None
    attention_softcap: float | None = None
    num_experts: int = 0
    experts_per_token: int = 0
    expert_intermediate_size: int = 0
    num_moe_layers: int = 0
    fused_expert_params: int = 0
    router_params: int = 0
    other_params: int = 0  # norms, positions, anything that is no Linear, embedding or expert
    num_params: int = 0
    linears: tuple[Linear, ...] = ()
    family: str = ""
    license: str = ""
    gated: bool = False
    modelscope_id: str | None = None
    same_shape: tuple[str, ...] = ()
    buildable: bool = True  # transformers builds it without remote code
    keeps_apart: tuple[str, ...] = ("flat", "rows")
    sources: Mapping[str, Sourced] = field(default_factory=dict)

    @property
    def embedding_params(self) -> int:
        """Parameters of the input embedding."""
        return self.vocab_size * (self.embedding_width or self.hidden_size)

    def targets(self, choice: str | tuple[str, ...]) -> tuple[str, ...]:
        """Leaf names that `attention`, `mlp`, `all-linear` or an explicit list stand for.

        A list may be one string with commas, as measured runs write it.
        """
        if not isinstance(choice, str):
            return choice
        attention = _leaves(self, ("attention", "linear_attention"))
        mlp = _leaves(self, ("mlp", "shared_expert"))
        named = {"attention": attention, "mlp": mlp, "all-linear": attention + mlp}
        return named.get(choice) or tuple(name.strip() for name in choice.split(","))


def _leaves(shape: ModelShape, roles: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.name for row in shape.linears if row.role in roles))
