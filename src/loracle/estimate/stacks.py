"""What a training stack launches: the habits that make one stack slower than another.

Two stacks that train the same model differ in how many kernels run between the matrix products,
in which dtype, whether the logits are ever whole, and in what the CPU pays for one launch. Those
are facts of the software, so they stand here by name. Stacks beyond ours (`STACKS` of
`domain.setup`) exist because published speeds name them: the law is checked against all of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stack:
    """Habits of one stack.

    `fused`: norm, rotary embedding and activation are one kernel each (Triton) instead of chains
    of elementwise passes; `fused_adapter`: so is the adapter. `head`: `whole` (fp32 logits in
    memory), `tiled` (never whole, recomputed in backward) or `fused` (loss and gradient in one
    pass). `launch`: CPU time of one launch relative to transformers with PEFT. `python_backward`: its backward is written in Python, so
    it launches as slowly as forward. `packs_experts`:
    routed experts are Linear layers that get quantised (transformers 4), not 3-D parameters.
    """

    name: str
    fused: bool = False
    fused_adapter: bool = False
    head: str = "whole"
    launch: float = 1.0
    python_backward: bool = False
    packs_experts: bool = False
    known: bool = True


_TABLE = (
    Stack("hf-trainer"),
    Stack("trl", head="tiled"),
    Stack("loracle", head="tiled"),
    Stack("transformers-4", packs_experts=True),
    Stack("unsloth", fused=True, fused_adapter=True, head="fused", python_backward=True),
    Stack("fast-kernels", fused=True, fused_adapter=True, packs_experts=True),
    Stack("fast-kernels-liger", fused=True, fused_adapter=True, head="fused", packs_experts=True),
    Stack("compiled", fused=True, head="tiled", launch=0.3),
    Stack("native", fused=True, fused_adapter=True, head="fused", launch=0.1),
)
PLAIN = _TABLE[0]
STACK_BY_NAME = {stack.name: stack for stack in _TABLE}


def stack_of(name: str) -> Stack:
    """The habits of a stack; an unknown name is taken for plain transformers, and says so."""
    return STACK_BY_NAME.get(name) or Stack(name, known=False)
