"""One fully resolved training configuration: the question that every engine answers.

A recipe may say `auto`; a `TrainingSetup` never does. The planner makes it from a recipe, a
measured run carries one, the formula, the dry run and the speed laws take it.
"""

from dataclasses import dataclass, replace

from loracle.domain.model import ModelShape

METHODS = ("qlora", "lora", "full")
STACKS = ("loracle", "trl", "hf-trainer")
ATTENTION_KERNELS = ("sdpa", "eager", "flash_attention_2")
OPTIMIZERS = (
    "adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit",
    "sgd",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSetup:
    """Adapter settings in PEFT's words; `dtype` is that of the adapter weights."""

    rank: int = 16
    alpha: float = 32
    targets: str | tuple[str, ...] = "all-linear"  # attention, mlp, all-linear, or leaf names
    dropout: float = 0.0
    dtype: str = "bfloat16"
    use_rslora: bool = False
    use_dora: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """What runs on each card.

    `quant` is `nf4-double`, `nf4`, `int8` or None. `kbit_upcast` says whether PEFT's
    prepare_model_for_kbit_training upcasts what is not quantised to fp32. With
    `gradient_checkpointing`, every `checkpoint_every`-th layer is recomputed.
    `fused_head` is derived: the trl and loracle stacks never hold the whole logits.
    """

    model: ModelShape
    method: str = "qlora"
    quant: str | None = "nf4-double"
    stack: str = "loracle"
    kbit_upcast: bool = False
    base_dtype: str = "bfloat16"
    autocast: str | None = "bfloat16"
    seq_len: int = 2048
    micro_batch: int = 1
    grad_accum: int = 1
    gradient_checkpointing: bool = True
    checkpoint_every: int = 1
    attention: str = "sdpa"
    optimizer: str = "paged_adamw_8bit"
    lora: LoraSetup | None = LoraSetup()
    packing: bool = False
    num_gpus: int = 1
    parallel: str = "none"  # none, ddp, fsdp (parameters sharded over all cards)
    eval_micro_batch: int | None = None  # evaluation inside training, None where there is none
    max_grad_norm: float = 1.0

    @property
    def fused_head(self) -> bool:
        """Whether the loss is computed by tiles, without the whole logits."""
        return self.stack in ("trl", "loracle")

    @property
    def recomputed_layers(self) -> int:
        """Layers 0, n, 2n ... whose forward pass runs twice (transformers' every_n_layers)."""
        if not self.gradient_checkpointing:
            return 0
        return -(-self.model.num_layers // self.checkpoint_every)

    @property
    def micro_step_tokens(self) -> int:
        """Tokens of one forward and backward on one card."""
        return self.seq_len * self.micro_batch

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step over all cards (fsdp and ddp both split the batch)."""
        return self.micro_step_tokens * self.grad_accum * self.num_gpus

    def with_changes(self, **changes: object) -> "TrainingSetup":
        """The same setup with some fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]
