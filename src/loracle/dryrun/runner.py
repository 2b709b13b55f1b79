"""Runs a traced model: two optimizer steps, and an evaluation pass where the setup has one."""

import gc
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from loracle.domain.setup import TrainingSetup
from loracle.dryrun import attention, build, kernels, step
from loracle.dryrun.autocast import CudaAutocast, cuda_autocast_state
from loracle.dryrun.optimizers import Trainable
from loracle.dryrun.recorder import Recorder

STEPS = 2
MICRO_STEPS = 2  # of each optimizer step; more repeat the second


@dataclass(frozen=True, slots=True)
class Run:
    """What a traced model left behind.

    `gradients` maps a trainable parameter, by step, to the storage of its gradient at the
    optimizer's step.
    """

    recorder: Recorder
    trainable: tuple[Trainable, ...]
    gradients: tuple[dict[str, int], ...]


def run(
    setup: TrainingSetup, config: Any, capability: tuple[int, int],
    progress: Callable[[float], None],
) -> Run:  # fmt: skip
    """Build the model of `config` and train it for two steps on fake tensors."""
    model = build.empty_model(setup, config)
    path = build.layer_path(model, config.num_hidden_layers)
    recorder = Recorder(path)
    packs = _packs(setup, config, capability)
    if packs:
        model.set_attn_implementation(attention.register_varlen(recorder))
    model = build.load_model(setup, model, recorder)
    _prepare(model, setup, recorder)
    recorder.kernels = kernels.table()
    recorder.workspace_bytes = kernels.cublas_workspace(capability)
    mode = CudaAutocast({
        "dropout": kernels.dropout,
        "scaled_dot_product_attention": attention.Attention(
            capability, recorder, flash=setup.attention == "flash_attention_2"
        ),
    })  # fmt: skip
    named = list(build.adapters(model))
    embeddings = {
        id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)
    }  # fmt: skip
    norms = {
        id(p) for m in model.modules() for p in m.parameters(recurse=False)
        if "norm" in type(m).__name__.lower()
    }  # fmt: skip
    trainable = tuple(
        Trainable(
            name, p.numel(), p.element_size(),
            decays=id(p) not in norms and not name.endswith("bias"),
            is_embedding=id(p) in embeddings,
        )
        for name, p in named
    )  # fmt: skip
    progress(0.2)
    gradients = []
    hooks = _hooks(model, path, recorder)
    # when Python's cycle collector runs is chance on a card too; keep it out of the log
    collecting = gc.isenabled()
    gc.disable()
    try:
        head = step.fused_head_on_cuda(recorder) if setup.fused_head else nullcontext()
        with cuda_autocast_state(mode), head, recorder, mode:
            recorder.enter("load.trainer", None)
            total = torch.zeros((), device="meta")
            held: list[Any] = []
            for number in range(STEPS):
                _train_step(model, setup, recorder, number, total, packs, held)
                recorder.enter(f"s{number}.optimizer", None, "optimizer")
                found = {}
                for name, p in named:
                    if p.grad is not None:
                        found[name] = recorder.number_of(p.grad)
                gradients.append({n: g for n, g in found.items() if g is not None})
                for gradient in gradients[-1].values():
                    module, _, op = recorder.owners[gradient]
                    recorder.owners[gradient] = (module, "gradient", op)
                recorder.enter(f"s{number}.drop", None, "optimizer")
                for _, p in named:
                    p.grad = None
                progress(0.2 + 0.7 * (number + 1) / STEPS)
            if setup.eval_micro_batch:
                _evaluate(model, setup, recorder, packs)
    finally:
        for hook in hooks:
            hook.remove()
        if collecting:
            gc.enable()
    return Run(recorder, trainable, tuple(gradients))


def _prepare(model: Any, setup: TrainingSetup, recorder: Recorder) -> None:
    if setup.fused_head:
        step.add_fused_head(model if setup.method == "full" else model.get_base_model())
    if setup.method != "full" and (setup.gradient_checkpointing or setup.stack == "hf-trainer"):
        model.enable_input_require_grads()
    if setup.gradient_checkpointing:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={
                "use_reentrant": False,
                "context_fn": lambda: (
                    recorder.checkpoint(again=False),
                    recorder.checkpoint(again=True),
                ),
            },
            every_n_layers=setup.checkpoint_every,
        )
    model.train()


def _train_step(
    model: Any, setup: TrainingSetup, recorder: Recorder, number: int, total: torch.Tensor,
    packs: bool, held: list[Any],
) -> None:  # fmt: skip
    micro_steps = min(setup.grad_accum, MICRO_STEPS)
    recorder.enter(f"s{number}.batch", None, "batch")
    batches = [_batch(setup, recorder, setup.micro_batch, packs) for _ in range(setup.grad_accum)]
    items = step.num_items(batches)
    held[:] = [batches]  # the trainer's loop lets go of a step's batches once it has the next
    for micro, batch in enumerate(batches[:micro_steps]):
        recorder.enter(f"s{number}.m{micro}.forward", None, "forward")
        loss = step.forward_loss(model, setup, batch, items)
        recorder.enter(f"s{number}.m{micro}.backward", None, "backward")
        step.backward(loss)
        recorder.enter(f"s{number}.m{micro}.after", None, "backward")
        total += loss.detach()
        del loss


def _evaluate(model: Any, setup: TrainingSetup, recorder: Recorder, packs: bool) -> None:
    recorder.enter("e.batch", None, "batch")
    batch = _batch(setup, recorder, setup.eval_micro_batch or 1, packs)
    items = step.num_items([batch])
    recorder.enter("e.forward", None, "evaluation")
    model.eval()
    with torch.no_grad():
        loss = step.forward_loss(model, setup, batch, items)
    recorder.enter("e.after", None, "evaluation")
    del loss, batch, items


def _packs(setup: TrainingSetup, config: Any, capability: tuple[int, int]) -> bool:
    """Whether loracle's trainer lays the rows of a batch in one, for the variable-length kernel."""
    return (
        setup.stack == "loracle"
        and setup.attention == "sdpa"
        and capability >= (8, 0)
        and not getattr(config, "attn_logit_softcapping", None)
        and setup.autocast in ("bfloat16", "float16")
    )


def _batch(setup: TrainingSetup, recorder: Recorder, rows: int, packs: bool) -> dict[str, Any]:
    make = step.packed_batch_for if packs else step.batch_for
    return dict(make(setup, recorder, rows))


def _hooks(model: nn.Module, path: str, recorder: Recorder) -> list[Any]:
    """Hooks that cut the log by layer and name the module at work."""
    names = {id(m): recorder.plain(n) for n, m in model.named_modules()}
    full = re.compile(re.escape(path) + r"\.(\d+)$")
    layers = {}
    for name, module in model.named_modules():
        found = full.search(name)
        if found:
            layers[id(module)] = int(found[1])
    last = max(layers.values())

    def before(module: nn.Module, args: Any) -> None:
        name = names.get(id(module))
        if name is None:
            return
        recorder.module = name
        layer = layers.get(id(module))
        if layer is not None and recorder.now.phase in ("forward", "evaluation"):
            recorder.enter(recorder.now.stage, layer)

    def after(module: nn.Module, args: Any, out: Any) -> None:
        name = names.get(id(module))
        if name is None:
            return
        recorder.module = name.rpartition(".")[0]
        layer = layers.get(id(module))
        if layer is None or recorder.now.phase not in ("forward", "evaluation"):
            return
        hidden = out[0] if isinstance(out, tuple) else out
        if hidden.requires_grad:
            stage = recorder.now.stage.removesuffix("forward") + "backward"
            hidden.register_hook(_Boundary(recorder, stage, layer, recorder.module))
        if layer == last:
            recorder.enter(recorder.now.stage, None)

    register = torch.nn.modules.module
    return [
        register.register_module_forward_pre_hook(before),
        register.register_module_forward_hook(after),
    ]


class _Boundary:
    """Marks where the backward pass enters a layer."""

    def __init__(self, recorder: Recorder, stage: str, layer: int, module: str) -> None:
        self.recorder, self.stage, self.layer, self.module = recorder, stage, layer, module

    def __call__(self, grad: torch.Tensor) -> None:
        self.recorder.enter(self.stage, self.layer)
        self.recorder.module = f"{self.module}.N (backward)"
