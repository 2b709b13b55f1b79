"""`loracle bench`: real training steps of a setup on this machine, with random weights.

What a plan estimates, a bench reads: memory, tokens a second, watts, degrees, and from them
tokens a joule and money a million tokens. The steps are those of training (adapters, fused head,
checkpointing, optimizer, clipping); loading data is not in them. The outcome is a measured run
that `loracle validate` reads and that the planner then prefers to its own estimate for this card.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loracle.catalog.measured import run_of
from loracle.domain.measured import MeasuredRun
from loracle.domain.setup import TrainingSetup

WARM_UP_STEPS = 3
Sample = Callable[[], dict[str, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the steps showed. `step_seconds` are the counted ones; memory None without a card."""

    setup: TrainingSetup
    step_seconds: tuple[float, ...]
    model_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    watts: float | None = None
    celsius: float | None = None
    losses: tuple[float, ...] = ()
    fits: bool = True
    software: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """Median of the counted steps."""
        return statistics.median(self.step_seconds) if self.step_seconds else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of a step over its median length."""
        return self.setup.step_tokens / self.seconds if self.seconds else None

    @property
    def spread(self) -> float | None:
        """(slowest - fastest) / median of the counted steps."""
        if not self.seconds:
            return None
        return (max(self.step_seconds) - min(self.step_seconds)) / self.seconds

    @property
    def tokens_per_joule(self) -> float | None:
        """Tokens a second over watts."""
        return self.tokens_per_s / self.watts if self.tokens_per_s and self.watts else None

    def price_per_million(self, price_per_hour: float) -> float | None:
        """Money for a million tokens at a price an hour."""
        if not self.tokens_per_s:
            return None
        return price_per_hour / 3600 / self.tokens_per_s * 1e6


def bench(
    setup: TrainingSetup,
    *,
    steps: int = 8,
    seconds: float = 120.0,
    sample: Sample | None = None,
    device: str = "cuda",
) -> Bench:
    """Train for a few steps and read the clock, the allocator and the card.

    `sample` reads watts, degrees and used bytes. Counts `steps` steps after the warm-up, or as
    many as fit in `seconds`, at least one. A step that finds no memory ends it: `fits` is false.
    """
    import torch

    place = torch.device(device)
    torch.manual_seed(0)
    try:
        model, model_bytes = _prepared(setup, place)
        times, losses, seen = _train(model, setup, place, steps, seconds, sample)
    except torch.OutOfMemoryError:
        return Bench(setup=setup, step_seconds=(), fits=False, software=_versions())
    on_card = place.type == "cuda"
    return Bench(
        setup=setup,
        step_seconds=tuple(times),
        model_bytes=model_bytes,
        peak_allocated_bytes=torch.cuda.max_memory_allocated(place) if on_card else None,
        peak_reserved_bytes=torch.cuda.max_memory_reserved(place) if on_card else None,
        device_used_bytes=int(_largest(seen, "used_bytes") or 0) or None,
        watts=_mean(seen, "watts"),
        celsius=_largest(seen, "celsius"),
        losses=tuple(losses),
        software=_versions(),
    )


def measured_run(outcome: Bench, gpu: str, *, run_id: str) -> MeasuredRun:
    """The outcome as a row that `loracle validate` and the planner read."""
    setup = outcome.setup
    return run_of(
        setup,
        id=run_id,
        gpu=gpu,
        fits=outcome.fits,
        model_bytes=outcome.model_bytes,
        peak_allocated_bytes=outcome.peak_allocated_bytes,
        peak_reserved_bytes=outcome.peak_reserved_bytes,
        device_used_bytes=outcome.device_used_bytes,
        tokens_per_s=outcome.tokens_per_s,
        step_s=outcome.seconds,
        step_spread=outcome.spread,
        power_w=outcome.watts,
        software=outcome.software,
        source="loracle bench: random weights, full-length random tokens, no data loading",
    )


def _prepared(setup: TrainingSetup, place: Any) -> tuple[Any, int | None]:
    """The model with adapters, checkpointing and head, ready for its first step."""
    import torch

    from loracle.jobs.random_model import random_model
    from loracle.jobs.train.model import add_adapters

    model = random_model(setup, place)
    if setup.kbit_upcast and setup.quant:
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    model = add_adapters(model, setup)
    if setup.gradient_checkpointing:
        every = {"every_n_layers": setup.checkpoint_every} if setup.checkpoint_every > 1 else {}
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}, **every
        )
        if setup.method != "full":
            model.enable_input_require_grads()
    if setup.fused_head and place.type == "cuda":
        from trl.trainer.utils import add_fused_lm_head

        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        add_fused_lm_head(base, outputs=("log_probs",))
    model.train()
    if place.type != "cuda":
        return model, None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(place)
    return model, torch.cuda.memory_allocated(place)


def _train(
    model: Any,
    setup: TrainingSetup,
    place: Any,
    steps: int,
    seconds: float,
    sample: Sample | None,
) -> tuple[list[float], list[float], list[dict[str, float | None]]]:
    import torch

    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = _optimizer(setup, trained, on_card=place.type == "cuda")
    times: list[float] = []
    losses: list[float] = []
    seen: list[dict[str, float | None]] = []
    begun: float | None = None
    for number in range(WARM_UP_STEPS + steps):
        start = time.perf_counter()
        total = 0.0
        for _ in range(setup.grad_accum):
            loss = _loss(model, setup, place) / setup.grad_accum
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(trained, setup.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        end = time.perf_counter()
        if number >= WARM_UP_STEPS:
            begun = start if begun is None else begun
            times.append(end - start)
            losses.append(total)
            if sample is not None:
                seen.append(sample())
            if end - begun > seconds:
                break
    return times, losses, seen


def _loss(model: Any, setup: TrainingSetup, place: Any) -> Any:
    """Mean loss of one micro-batch of random tokens, every one of them labelled."""
    import torch

    shape = (setup.micro_batch, setup.seq_len)
    tokens = torch.randint(5, setup.model.vocab_size - 1, shape, device=place)
    dtype = torch.float16 if setup.autocast == "float16" else torch.bfloat16
    with torch.autocast(place.type, dtype=dtype, enabled=setup.autocast is not None):
        if setup.fused_head and place.type == "cuda":
            found = model(input_ids=tokens, labels=tokens, use_cache=False, fused_lm_head=True)
            return -found.log_probs.sum() / tokens.numel()
        return model(input_ids=tokens, labels=tokens, use_cache=False).loss


def _optimizer(setup: TrainingSetup, trained: list[Any], *, on_card: bool) -> Any:
    """transformers' optimizer of that name; bitsandbytes' need a card."""
    import tempfile

    from transformers import Trainer, TrainingArguments

    name = setup.optimizer if on_card or "bit" not in setup.optimizer else "adamw_torch"
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, optim=name, learning_rate=2e-4, report_to=[], use_cpu=not on_card
        )
        kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments)
    return kind(trained, **options)


def _versions() -> dict[str, str]:
    from loracle.jobs.train.facts import versions

    return versions()


def _mean(seen: list[dict[str, float | None]], name: str) -> float | None:
    values = [one[name] for one in seen if one.get(name) is not None]
    return statistics.fmean(values) if values else None


def _largest(seen: list[dict[str, float | None]], name: str) -> float | None:
    return max((one[name] for one in seen if one.get(name) is not None), default=None)
