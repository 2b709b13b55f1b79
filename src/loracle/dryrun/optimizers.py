"""Optimizer steps as sequences of allocations, over the real list of trainable parameters.

The arithmetic of an optimizer does not depend on the model, so its allocations are written out
rather than traced: torch's AdamW (foreach and fused), SGD, and bitsandbytes' blockwise 8-bit and
paged AdamW. Sources: torch/optim/adamw.py, torch/nn/utils/clip_grad.py,
aten/src/ATen/native/cuda/ForeachReduceOp.cu, bitsandbytes/optim/optimizer.py.

transformers' Trainer makes two parameter groups (with and without weight decay: biases and norms
are in the second), and torch's foreach implementation works a group and a dtype at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loracle.domain.trace import Op

CHUNK = 65536  # elements a block of a multi-tensor kernel handles (kChunkSize)
PAGED_FROM = 100_000  # elements from which bitsandbytes pages a state tensor
EIGHT_BIT_FROM = 4096  # elements under which a state stays in fp32
BLOCKSIZE = 256


class Log(Protocol):
    """Where births and deaths go."""

    def born(self, size: int, kind: str, op: str = "") -> int:
        """Log a birth; returns the storage's number."""

    def died(self, number: int) -> None:
        """Log a death."""


@dataclass(frozen=True, slots=True)
class Trainable:
    """One trainable parameter as the optimizer sees it."""

    name: str
    numel: int
    itemsize: int
    decays: bool
    is_embedding: bool = False


def clip_grad_norm(log: Log, parameters: Sequence[Trainable]) -> None:
    """torch.nn.utils.clip_grad_norm_ with foreach: norms by chunk, their stack, the scalars."""
    by_size: dict[int, list[Trainable]] = {}
    for parameter in parameters:
        by_size.setdefault(parameter.itemsize, []).append(parameter)
    kept = []
    for itemsize, group in by_size.items():
        chunks = max((p.numel + CHUNK - 1) // CHUNK for p in group)
        partial = log.born(len(group) * chunks * 4, "workspace", "_foreach_norm")
        kept.append(log.born(len(group) * itemsize, "workspace", "_foreach_norm"))
        log.died(partial)
    stacked = log.born(len(parameters) * 4, "workspace", "stack")
    total = log.born(4, "workspace", "linalg_vector_norm")
    log.died(stacked)
    for number in kept:
        log.died(number)
    scalars = [log.born(4, "workspace", "clip") for _ in range(3)]
    for number in scalars:
        log.died(number)
    log.died(total)


class Optimizer:
    """One optimizer over a run: its states are born in the first step."""

    def __init__(self, name: str, parameters: Sequence[Trainable]) -> None:
        self.name = name
        self.parameters = tuple(parameters)
        self.managed_bytes = 0
        self._started = False
        groups = [[p for p in parameters if p.decays], [p for p in parameters if not p.decays]]
        self._groups = [g for g in groups if g]

    @property
    def paged(self) -> bool:
        """Whether large states live in CUDA unified memory."""
        return self.name.startswith("paged_")

    def step(self, log: Log) -> None:
        """One optimizer step."""
        if self.name in ("adamw_torch", "adamw_torch_fused"):
            self._adamw(log)
        elif self.name == "sgd":
            pass
        else:
            self._blockwise(log, 8 if self.name.endswith("8bit") else 32)
        self._started = True

    def operations(self) -> list[Op]:
        """One step's kernels, for the speed laws: the states and weights read and written."""
        if self.name == "sgd":
            states = 0
        elif self.name.endswith("8bit"):
            states = 2
        else:
            states = 8
        numel = sum(p.numel for p in self.parameters)
        if not numel:
            return []
        itemsize = self.parameters[0].itemsize
        state_bytes = states if self.name.startswith(("adamw_8", "paged")) else 2 * itemsize
        foreach = self.name == "adamw_torch"
        # foreach makes some ten passes over the lists; the others one
        moved = numel * ((3 * itemsize + 2 * state_bytes) * (3 if foreach else 1))
        launches = len(self.parameters)
        if foreach:
            launches = max(10, 10 * launches // 30)
        elif self.name == "adamw_torch_fused":
            launches = max(1, launches // 30)
        return [
            Op("optimizer", self.name, 12.0 * numel, float(moved), "float32", (numel,),
               "optimizer", 1, launches),
            Op("optimizer", "clip_grad_norm", 2.0 * numel, 3.0 * numel * itemsize, "float32",
               (numel,), "optimizer", 1, max(4, len(self.parameters) // 30)),
        ]  # fmt: skip

    def _adamw(self, log: Log) -> None:
        fused = self.name == "adamw_torch_fused"
        for group in self._groups:
            if not self._started:
                for parameter in group:
                    if fused:
                        log.born(4, "optimizer_state", "step")
                    for state in ("exp_avg", "exp_avg_sq"):
                        log.born(parameter.numel * parameter.itemsize, "optimizer_state", state)
            if fused:
                continue
            by_size: dict[int, list[Trainable]] = {}
            for parameter in group:
                by_size.setdefault(parameter.itemsize, []).append(parameter)
            for same in by_size.values():
                roots = [
                    log.born(p.numel * p.itemsize, "optimizer_scratch", "_foreach_sqrt")
                    for p in same
                ]
                for number in reversed(roots):  # a Python list lets go from its end
                    log.died(number)

    def _blockwise(self, log: Log, bits: int) -> None:
        if self._started:
            return
        maps = False
        for group in self._groups:
            for p in group:
                eight = bits == 8 and p.numel >= EIGHT_BIT_FROM and not p.is_embedding
                if eight and not maps:
                    log.born(1024, "optimizer_state", "qmap")
                    log.born(1024, "optimizer_state", "qmap")
                    maps = True
                for state in ("state1", "state2"):
                    size = p.numel * (1 if eight else 4)
                    if self.paged and p.numel >= PAGED_FROM:
                        self.managed_bytes += size
                    else:
                        log.born(size, "optimizer_state", state)
                if eight:
                    for state in ("absmax1", "absmax2"):
                        blocks = (p.numel + BLOCKSIZE - 1) // BLOCKSIZE
                        log.born(blocks * 4, "optimizer_state", state)
