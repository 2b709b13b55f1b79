"""From a setup to a trace: plan, build, run two steps on fake tensors, place the layers."""

import re
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Owner, Trace
from loracle.errors import EngineError

HOPPER = (9, 0)
STEPS = 3  # optimizer steps in the log: the allocator has seen its peak by the second
# what models' own code and torch's meta kernels raise where they cannot go on
MODEL_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)
LIBRARIES = ("torch", "transformers", "peft", "trl", "accelerate", "bitsandbytes")


def trace(
    setup: TrainingSetup,
    *,
    capability: tuple[int, int] = HOPPER,
    progress: Callable[[float], None] | None = None,
    whole: bool = False,
) -> Trace:
    """The storages' lives and the operations of `setup`.

    `capability` is the card's compute capability: it decides which attention kernel runs and how
    much workspace cuBLAS takes. `progress` is called with the fraction done. `whole` runs every
    layer instead of placing those that repeat; the result is the same, only later.

    Raises EngineError where the step cannot be run on fake tensors: code that is not in
    transformers, control flow that depends on values, an operator without a meta kernel.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _trace(setup, capability, progress or (lambda _: None), whole)


def software() -> dict[str, str]:
    """Versions of the libraries that a trace depends on."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _trace(
    setup: TrainingSetup, capability: tuple[int, int], progress: Callable[[float], None],
    whole: bool,
) -> Trace:  # fmt: skip
    if setup.num_gpus > 1 and setup.parallel == "fsdp":
        raise EngineError("dryrun.sharded", num_gpus=setup.num_gpus)
    if setup.quant == "int8":
        raise EngineError("dryrun.int8")
    from loracle.dryrun import build, layers, runner, step

    attention = "sdpa" if setup.attention == "flash_attention_2" else setup.attention
    config = build.model_config(setup.model.config, attention)
    text = config.get_text_config()
    signs = layers.signatures(text, setup.checkpoint_every, setup.gradient_checkpointing)
    # the balancing loss stacks the router logits of all layers, so its tensors grow with them
    whole = whole or (setup.fused_head and step.router_loss_coefficient(config) != 0.0)
    plans = layers.make_plans(signs)
    progress(0.05)
    for plan in plans[-1:] if whole else plans:
        small = layers.shrink(text, plan) if plan.period else text
        try:
            done = runner.run(setup, small, capability, progress)
        except MODEL_ERRORS as error:
            reason = f"{type(error).__name__}: {error}"[:200]
            raise EngineError(
                "dryrun.cannot_run", hint="hint.dryrun.formula", reason=reason,
                op=str(text.model_type),
            ) from error  # fmt: skip
        try:
            return _assemble(setup, done, plan)
        except layers.NotPeriodic:
            if not plan.period:
                raise
    raise AssertionError("the last plan is the whole model")


def _assemble(setup: TrainingSetup, done: Any, plan: Any) -> Trace:
    from loracle.dryrun import layers
    from loracle.dryrun.optimizers import Optimizer, clip_grad_norm

    recorder = done.recorder
    placer = layers.Placer(recorder.segments, recorder.sizes, recorder.owners, plan)
    log = placer.log
    names = list(_all_names([p.name for p in done.trainable], recorder._layer_of, plan))
    by_name = {p.name: p for p in done.trainable}
    parameters = [_renamed(by_name[source], name) for name, source, _ in names]
    optimizer = Optimizer(setup.optimizer, parameters)
    runs = {run[0].stage: run for run in placer.stages}
    micro = max(1, min(setup.grad_accum, 2))
    log.mark("load")
    for stage, run in runs.items():
        if stage.startswith("load"):
            placer.place(run, times=0)
    if setup.num_gpus > 1 and setup.parallel == "ddp":
        for size in ddp_buckets([p.numel * p.itemsize for p in parameters]):
            log.born(size, "workspace", "ddp bucket")
    for step in range(STEPS):
        source, later = min(step, 1), max(step - 1, 0)
        counted = step == 1
        for stage, run in runs.items():
            if not stage.startswith(f"s{source}.") or stage.endswith((".optimizer", ".drop")):
                continue
            if not stage.endswith(".after"):
                log.mark(run[0].phase)
            weight = 0
            if counted:
                is_last = stage.startswith(f"s{source}.m{micro - 1}.")
                weight = max(1, setup.grad_accum - micro + 1) if is_last else 1
            placer.place(run, later, weight)
        log.mark("optimizer")
        if setup.max_grad_norm > 0:
            clip_grad_norm(log, parameters)
        optimizer.step(log)
        grads = done.gradients[source]
        for _, source_name, layer in names:
            if source_name in grads:
                log.died(placer.number(grads[source_name], layer, later))
    for stage, run in runs.items():
        if stage.startswith("e."):
            if stage != "e.after":
                log.mark(run[0].phase)
            placer.place(run, later=STEPS - 2, times=0)  # what it lets go is of the last step
    log.mark("end")
    found: dict[tuple[str, str, str], int] = {}
    owner_of = tuple(found.setdefault(o, len(found)) for o in log.owners)
    ops = [_counted(op, count) for op, count in log.ops.items() if count]
    ops += optimizer.operations()
    return Trace(
        events=tuple(log.events), sizes=tuple(log.sizes),
        owners=tuple(Owner(*o) for o in found), owner_of=owner_of, marks=tuple(log.marks),
        ops=tuple(ops), num_kernels=sum(op.count * op.launches for op in ops),
        trainable_params=sum(p.numel for p in parameters),
        managed_bytes=optimizer.managed_bytes, software=software(),
    )  # fmt: skip


def ddp_buckets(sizes: list[int]) -> list[int]:
    """Bytes of DistributedDataParallel's gradient buckets: a first of 1 MiB, then of 25 MiB.

    They are filled from the last parameter on; a bucket closes once it has reached its size.
    """
    buckets: list[int] = []
    now, limit = 0, 1 << 20
    for size in reversed(sizes):
        now += size
        if now >= limit:
            buckets.append(now)
            now, limit = 0, 25 << 20
    return [*buckets, now] if now else buckets


def _counted(op: Any, count: int) -> Any:
    from dataclasses import replace

    return replace(op, count=count)


def _renamed(parameter: Any, name: str) -> Any:
    from dataclasses import replace

    return replace(parameter, name=name)


def _all_names(
    names: list[str], layer_of: re.Pattern[str], plan: Any
) -> Iterator[tuple[str, str, int | None]]:
    """(name, the traced parameter that stands for it, layer), in the model's order."""
    by_layer: dict[int, list[str]] = {}
    for name in names:
        found = layer_of.search(name)
        if found:
            by_layer.setdefault(int(found[1]), []).append(name)
    placed = False
    for name in names:
        if not layer_of.search(name):
            yield name, name, None
            continue
        if placed:
            continue
        placed = True
        for layer in range(plan.num_layers):
            source = plan.source(layer) if plan.period else layer
            for source_name in by_layer.get(source, ()):
                found = layer_of.search(source_name)
                assert found is not None
                new = source_name[: found.start(1)] + str(layer) + source_name[found.end(1) :]
                yield new, source_name, layer


__all__ = ["HOPPER", "EngineError", "software", "trace"]
