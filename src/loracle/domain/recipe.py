"""The recipe: what the user wrote, checked and with every default in one place.

Validators check and never rewrite: values that are derived (micro-batch `auto`, accumulation,
the card) live in the plan. Groups mirror what the user thinks in: model, data, method, lora,
quant, training, rent, save, evaluation.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]


class _Group(BaseModel):
    # no use_attribute_docstrings: it reads the source at every start (see recipe_schema.py)
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Data(_Group):
    """What to train on."""

    train: str | None = None
    """A file, or files matching a pattern: JSONL, JSON, CSV or Parquet."""
    eval: str | None = None
    """Held-out rows in the same format."""
    format: Literal["auto", "alpaca", "sharegpt", "messages", "prompt-completion", "text"] = "auto"
    """How a row is read; auto looks at the keys."""
    tokens: Annotated[int, Field(gt=0, le=10**15)] | None = None
    """Tokens of one epoch, where there is no file yet."""
    train_on: Literal["assistant", "completion", "everything", "auto"] = "auto"
    """What carries a loss; auto: the assistant's turns or the completion, everything for text."""


class Lora(_Group):
    """Adapter settings, in PEFT's words."""

    rank: Annotated[int, Field(gt=0, le=8192)] = 16
    """Width of the adapter."""
    alpha: Annotated[float, Field(gt=0)] = 32
    """Scale: the update is multiplied by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the adapter's input."""
    targets: Literal["attention", "mlp", "all-linear"] | tuple[str, ...] = "all-linear"
    """Which Linear layers get an adapter: a group, or leaf names."""
    use_rslora: bool = False
    """Scale by alpha / sqrt(rank)."""
    use_dora: bool = False
    """Weight-decomposed adapters."""
    allow_partial: bool = False
    """Accept targets that miss layers of this architecture."""


class Quant(_Group):
    """How the base is stored; used by qlora only."""

    type: Literal["nf4", "int8"] = "nf4"
    """bitsandbytes NF4 or LLM.int8."""
    double: bool = True
    """Quantise the scales as well."""


class Training(_Group):
    """The step, and how many of them."""

    seq_len: Annotated[int, Field(gt=0, le=1_048_576)] = 2048
    """Tokens of a sequence; longer samples are cut, and the plan says how many."""
    packing: bool = True
    """Fill sequences with several samples, isolated from each other."""
    epochs: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """Passes over the data; 3 where neither epochs nor steps is given."""
    steps: Annotated[int, Field(gt=0, le=1_000_000_000)] | None = None
    """Optimizer steps, instead of epochs."""
    effective_batch: Annotated[int, Field(gt=0, le=65_536)] = 16
    """Sequences of one optimizer step over all cards."""
    micro_batch: Positive | Literal["auto"] = "auto"
    """Sequences of one forward pass on one card; auto: the fastest that fits."""
    gradient_checkpointing: bool | Annotated[int, Field(gt=1)] | Literal["auto"] = True
    """Recompute activations: every layer, every n-th layer, none, or what is fastest."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention kernel; auto: sdpa, whose flash path needs Ampere or newer."""
    optimizer: Literal[
        "adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"
    ] = "paged_adamw_8bit"
    """Optimizer, by transformers' name."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """2e-4 for adapters, 2e-5 for full fine-tuning where not given."""
    lr_scheduler: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "cosine"
    """Learning-rate schedule, by transformers' name."""
    warmup_share: Annotated[float, Field(ge=0, lt=1)] = 0.03
    """Share of the steps that warm up."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradient clipping."""
    adapter_dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """dtype of the adapter weights; auto: what the stack does by itself."""
    kbit_upcast: bool | None = None
    """PEFT's fp32 upcast of what is not quantised; by default only on the hf-trainer stack."""
    seed: Annotated[int, Field(ge=0)] = 42
    """Seed of data order, adapter initialisation and dropout."""


class Rent(_Group):
    """What may be spent, by when, on what."""

    budget: str | None = None
    """`3000CNY/month`, `200CNY` for the job."""
    deadline: str | None = None
    """`12h`, `3d`."""
    gpus: tuple[str, ...] = ()
    """Cards to consider; empty: all that an offer holds."""
    offers: tuple[str, ...] = ()
    """Offers to consider; empty: all."""
    max_gpus: Annotated[int, Field(gt=0, le=64)] = 4
    """Most cards in one machine."""
    currency: str = "CNY"
    """Currency of the answer."""
    hours_per_month: Annotated[float, Field(gt=0, le=730)] | None = None
    """Hours a month that the card would be used, for hour against month."""


class Save(_Group):
    """Checkpoints and copies."""

    every_steps: Positive | None = 200
    """A checkpoint each so many steps."""
    every_minutes: Annotated[float, Field(gt=0)] | None = 30
    """And each so many minutes, whichever comes first."""
    keep: Positive = 3
    """Newest checkpoints kept, besides the best."""
    mirror: str | None = None
    """An fsspec URL that checkpoints and results are copied to (`s3://bucket/folder`)."""
    folder: str = "runs"
    """Where run folders are made."""


class Evaluation(_Group):
    """Scores on the held-out set."""

    metric: Literal["auto", "exact", "f1", "rouge-l", "accuracy", "loss"] = "auto"
    """auto: exact match for short answers, ROUGE-L for long ones, loss for text."""
    every_steps: Positive | None = None
    """Loss on the held-out set during training; None: at the end of each epoch."""
    max_new_tokens: Positive = 128
    """Longest answer that is generated."""
    batch: Positive | None = None
    """Sequences of one evaluation pass; by default the micro-batch."""
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Largest difference in score that still counts as the same."""


class Recipe(_Group):
    """Everything that `plan`, `train`, `evaluate` and `merge` read.

    Groups that are not given are made of their defaults without validation, so that only this
    class has a validator to build at the start.
    """

    model: str
    """Hub id, `modelscope:ID`, a local folder, or a config.json."""
    data: Data = Field(default_factory=Data.model_construct)
    method: Literal["qlora", "lora", "full"] = "qlora"
    """Quantised base with adapters, 16-bit base with adapters, or all weights."""
    lora: Lora = Field(default_factory=Lora.model_construct)
    quant: Quant = Field(default_factory=Quant.model_construct)
    stack: Literal["loracle", "trl", "hf-trainer"] = "loracle"
    """Ours, TRL's SFTTrainer as it comes, or plain Trainer with the fp32 upcast."""
    training: Training = Field(default_factory=Training.model_construct)
    rent: Rent = Field(default_factory=Rent.model_construct)
    save: Save = Field(default_factory=Save.model_construct)
    evaluation: Evaluation = Field(default_factory=Evaluation.model_construct)

    @model_validator(mode="after")
    def _one_length(self) -> "Recipe":
        if self.training.epochs is not None and self.training.steps is not None:
            raise ValueError("recipe.epochs_and_steps")
        if self.data.train is None and self.data.tokens is None and self.data.eval is not None:
            raise ValueError("recipe.eval_without_train")
        micro_batch = self.training.micro_batch
        if micro_batch != "auto" and self.training.effective_batch % micro_batch:
            raise ValueError("recipe.batch_not_divisible")
        return self

    @property
    def epochs(self) -> float:
        """Passes over the data: 3 where the recipe says nothing."""
        return self.training.epochs or 3.0
