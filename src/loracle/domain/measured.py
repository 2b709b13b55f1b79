"""A measured run (`loracle.measured-run/1`): what a real card showed for one setup."""

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = "loracle.measured-run/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One row of a measured-run file, in base units; None where a quantity was not read.

    `config` is the model's config.json (own key names); the catalog turns it into a shape.
    `step_spread` is (slowest - fastest) / median over the counted steps: a speed is worth
    comparing under 0.2.
    """

    id: str
    hub_id: str
    config: Mapping[str, object]
    method: str
    quant: str | None
    stack: str
    kbit_upcast: bool
    base_dtype: str
    autocast: str | None
    seq_len: int
    micro_batch: int
    grad_accum: int
    gradient_checkpointing: bool
    checkpoint_every: int = 1
    attention: str
    optimizer: str
    packing: bool = False
    parallel: str = "ddp"  # what several cards do: ddp or fsdp
    lora_rank: int | None
    lora_targets: str | tuple[str, ...] | None
    lora_dropout: float
    lora_dtype: str | None
    gpu: str
    num_gpus: int = 1
    memory_cap_bytes: int | None = None
    fits: bool = True
    model_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    context_bytes: int | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    step_spread: float | None = None
    power_w: float | None = None
    eval_micro_batch: int | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
