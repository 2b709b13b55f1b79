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
    pass). `launch`: CPU time of one launch relative to transformers with PEFT. `python_backward`:
    its backward is written in Python, so it launches as slowly as forward. `transformers_4`:
    routed experts are Linear layers that get quantised, not 3-D parameters, and capped attention
    scores fall back to eager attention.
    """

    name: str
    fused: bool = False
    fused_adapter: bool = False
    head: str = "whole"
    launch: float = 1.0
    python_backward: bool = False
    transformers_4: bool = False
    known: bool = True


_TABLE = (
    Stack("hf-trainer"),
    Stack("trl", head="tiled"),
    Stack("loracle", head="tiled"),
    Stack("transformers-4", transformers_4=True),
    Stack("triton-adapters", fused_adapter=True),
    Stack("unsloth", fused=True, fused_adapter=True, head="fused", python_backward=True),
    Stack("fast-kernels", fused=True, fused_adapter=True, transformers_4=True),
    Stack("fast-kernels-liger", fused=True, fused_adapter=True, head="fused", transformers_4=True),
    Stack("compiled", fused=True, fused_adapter=True, head="tiled", launch=0.3),
    Stack("native", fused=True, fused_adapter=True, head="fused", launch=0.1),
)
PLAIN = _TABLE[0]
STACK_BY_NAME = {stack.name: stack for stack in _TABLE}


def stack_of(name: str) -> Stack:
    """The habits of a stack; an unknown name is taken for plain transformers, and says so."""
    return STACK_BY_NAME.get(name) or Stack(name, known=False)
