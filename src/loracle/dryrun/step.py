"""One optimizer step as the trainers run it, with the trainers' own lifetimes.

What a trainer holds on to decides the peak as much as what the model computes: transformers'
Trainer keeps the batch through the step, lets the outputs go when `compute_loss` returns and the
gradients at `zero_grad`; accelerate copies 16-bit outputs to fp32; TRL scores the head in tiles.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from loracle.domain.setup import TrainingSetup
from loracle.dryrun.ops import describe
from loracle.dryrun.recorder import Recorder


def batch_for(setup: TrainingSetup, recorder: Recorder, rows: int) -> dict[str, torch.Tensor]:
    """Token ids, labels and an all-ones mask on the card, as the data loader puts them there."""
    shape = (rows, setup.seq_len)
    batch = {}
    for name in ("input_ids", "labels", "attention_mask"):
        tensor = torch.empty(shape, dtype=torch.int64, device="meta")
        recorder.watch(tensor, "batch", name)
        batch[name] = tensor
    recorder.uniform.set(batch["labels"], 1)
    recorder.uniform.set(batch["attention_mask"], 1)
    return batch


def packed_batch_for(
    setup: TrainingSetup, recorder: Recorder, rows: int
) -> dict[str, torch.Tensor | int]:
    """All rows in one, without a mask: positions and the documents' bounds tell them apart.

    loracle's own collator does this on cards that have the variable-length kernel. How many
    documents a row holds is the data's affair; one a row is taken.
    """
    shape = (1, rows * setup.seq_len)
    batch: dict[str, Any] = {}
    for name in ("input_ids", "labels", "position_ids"):
        batch[name] = torch.empty(shape, dtype=torch.int64, device="meta")
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        batch[name] = torch.empty(rows + 1, dtype=torch.int32, device="meta")
    for name, tensor in batch.items():
        recorder.watch(tensor, "batch", name)
    batch["max_length_q"] = batch["max_length_k"] = setup.seq_len
    recorder.uniform.set(batch["labels"], 1)
    return batch


def num_items(batches: list[dict[str, Any]]) -> torch.Tensor:
    """Trainer._get_num_items_in_batch: the labelled tokens of all micro-batches."""
    total: Any = 0
    for batch in batches:
        total = total + batch["labels"][..., 1:].ne(-100).sum()
    return total  # type: ignore[no-any-return]


def forward_loss(
    model: Any, setup: TrainingSetup, batch: dict[str, torch.Tensor], items: torch.Tensor
) -> torch.Tensor:
    """compute_loss of the stack's trainer: the loss, still tied to its graph."""
    if setup.fused_head:
        return _fused_loss(model, setup, batch, items)
    return _plain_loss(model, setup, batch, items)


def _autocast(setup: TrainingSetup) -> Any:
    enabled = setup.autocast is not None
    dtype = torch.float16 if setup.autocast == "float16" else torch.bfloat16
    return torch.autocast("cuda", dtype=dtype, enabled=enabled)


def _plain_loss(model: Any, setup: TrainingSetup, batch: Any, items: Any) -> torch.Tensor:
    from accelerate.utils.operations import convert_to_fp32

    def forward(**inputs: Any) -> Any:
        with _autocast(setup):
            return model(**inputs)

    if setup.autocast is not None:
        outputs = convert_to_fp32(forward(**batch, num_items_in_batch=items))
    else:
        outputs = forward(**batch, num_items_in_batch=items)
    return outputs["loss"]  # type: ignore[no-any-return]


def _fused_loss(model: Any, setup: TrainingSetup, batch: Any, items: Any) -> torch.Tensor:
    coefficient = router_loss_coefficient(model.config)
    inputs = {**batch, "use_cache": False, "num_items_in_batch": items}
    if coefficient:
        inputs["output_router_logits"] = True
    with _autocast(setup):
        outputs = model(**inputs, fused_lm_head=True)
    per_token_loss = -outputs.log_probs
    loss = per_token_loss.sum() / torch.as_tensor(items).clamp(min=1)
    if coefficient:
        loss = loss + coefficient * outputs.aux_loss / setup.grad_accum
    outputs.label_mask.sum()
    outputs.entropy.detach().sum()
    outputs.is_top1.sum()
    return loss


def backward(loss: torch.Tensor) -> None:
    """loss.backward(), without leaving the function mode: a recomputation needs the casts too."""
    from torch.autograd.graph import _engine_run_backward

    _engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (),
        allow_unreachable=True, accumulate_grad=True,
    )  # fmt: skip


def router_loss_coefficient(config: Any) -> float:
    """The weight of a mixture's balancing loss in TRL's SFTTrainer; 0 where there is none."""
    text = config.get_text_config()
    if not hasattr(text, "output_router_logits"):
        return 0.0
    return float(getattr(text, "router_aux_loss_coef", 0.0) or 0.0)


def add_fused_head(model: Any) -> None:
    """TRL's fused LM head with the per-token outputs that SFTTrainer asks for."""
    from trl.trainer.utils import add_fused_lm_head

    text = model.config.get_text_config()
    if hasattr(text, "router_aux_loss_coef") and hasattr(text, "output_router_logits"):
        text.output_router_logits = bool(router_loss_coefficient(model.config))

    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))


@contextmanager
def fused_head_on_cuda(recorder: Recorder) -> Iterator[None]:
    """Let TRL's fused head take its CUDA path: Triton folds each tile in place."""
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    class Launch:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **kwargs: None

    def addmm_fp32(acc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        op = describe(torch.ops.aten.mm.default, (a, b), {}, acc, recorder.op_phase())
        if op is not None:
            recorder.note(op)

    swaps = [
        (chunked_logprob, "_use_triton", lambda device: True),
        (utils, "_use_triton", lambda device: True),
        (chunked_logprob, "_forward_kernel", Launch()),
        (chunked_logprob, "_backward_kernel", Launch()),
        (chunked_logprob, "_addmm_fp32", addmm_fp32),
        (chunked_logprob, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b))),
    ]
    missing = object()
    before = [(module, name, getattr(module, name, missing)) for module, name, _ in swaps]
    for module, name, value in swaps:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            if value is missing:
                delattr(module, name)
            else:
                setattr(module, name, value)
