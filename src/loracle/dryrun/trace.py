"""From a setup to a trace: build, wrap, run a few steps on fake tensors, log everything."""

import gc
from collections.abc import Callable
from typing import Any

from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Owner, Trace

HOPPER = (9, 0)


def trace(
    setup: TrainingSetup,
    *,
    capability: tuple[int, int] = HOPPER,
    progress: Callable[[float], None] | None = None,
    steps: int = 3,
) -> Trace:
    """The storages' lives and the operations of `setup`.

    `capability` is the card's compute capability: it decides which attention kernel runs and how
    much workspace cuBLAS takes. `progress` is called with the fraction done. Raises EngineError
    where the step cannot be run on fake tensors.
    """
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _trace(setup, dict(setup.model.config), capability, steps, torch)


def _trace(
    setup: TrainingSetup, config: dict[str, object], capability: tuple[int, int], steps: int,
    torch: Any,
) -> Trace:  # fmt: skip
    import transformers  # noqa: F401  (before the autocast patch looks for its modules)

    from loracle.dryrun import build, kernels, step
    from loracle.dryrun.autocast import CudaAutocast, cuda_autocast_state
    from loracle.dryrun.optimizers import Optimizer, Trainable, clip_grad_norm
    from loracle.dryrun.recorder import Recorder

    recorder = Recorder({})
    mode = CudaAutocast({
        "dropout": kernels.dropout,
        "scaled_dot_product_attention": kernels.Attention(capability),
    })
    recorder.mark("load")
    model = build.build_model(setup, config, recorder)
    recorder.kernels.update(kernels.table())
    if setup.gradient_checkpointing:
        if setup.method != "full":
            model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    elif setup.stack == "hf-trainer" and setup.method != "full":
        model.enable_input_require_grads()
    if setup.fused_head:
        step.add_fused_head(model if setup.method == "full" else model.get_base_model())
    model.train()
    gc.collect()
    trainable = list(build.adapters(model))
    parameters = [
        Trainable(
            name, p.numel(), p.element_size(),
            decays=p.dim() > 1, is_embedding="embed" in name,
        )
        for name, p in trainable
    ]  # fmt: skip
    optimizer = Optimizer(setup.optimizer, parameters)
    workspaces: set[str] = set()
    workspace_bytes = (32 << 20) if capability[0] in (9, 10) else (8320 << 10)
    gemms = {
        torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default,
        torch.ops.aten.baddbmm.default,
    }  # fmt: skip

    def on_op(func: Any, args: Any, kwargs: Any, out: Any, phase: str) -> None:
        if func in gemms:
            thread = "backward" if phase == "backward" else "forward"
            if thread not in workspaces:
                workspaces.add(thread)
                recorder.born(workspace_bytes, "workspace", "cublas")

    recorder.on_op = on_op
    with cuda_autocast_state(mode), step.fused_head_on_cuda(recorder), recorder, mode:
        total = None
        for number in range(steps):
            recorder.mark("batch")
            batches = [
                step.batch_for(setup, recorder, setup.micro_batch) for _ in range(setup.grad_accum)
            ]
            items = torch.empty((), dtype=torch.int64, device="meta")
            recorder.watch(items)
            for batch in batches:
                recorder.mark("forward")
                loss = step.forward_loss(model, setup, batch, items)
                recorder.mark("backward")
                step.backward(loss)
                loss = loss.detach()
                total = loss if total is None else total + loss
            recorder.mark("optimizer")
            if setup.max_grad_norm > 0:
                clip_grad_norm(recorder, parameters)
            optimizer.step(recorder)
            for _, p in trainable:
                p.grad = None
            del batches, batch, loss
    recorder.mark("end")
    names: dict[tuple[str, str, str], int] = {}
    owner_of = tuple(names.setdefault(o, len(names)) for o in recorder.owners)
    return Trace(
        events=tuple(recorder.events), sizes=tuple(recorder.sizes),
        owners=tuple(Owner(*o) for o in names), owner_of=owner_of, marks=tuple(recorder.marks),
        ops=(), num_kernels=0, trainable_params=sum(p.numel for p in parameters),
        managed_bytes=optimizer.managed_bytes,
    )  # fmt: skip
