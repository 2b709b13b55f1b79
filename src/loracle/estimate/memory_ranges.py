"""How far the real peak may be from the likely one, and why.

Half-widths are shares of the likely value. Allocated: the residuals against measured runs
(leave-one-model-out) and against the dry run over every architecture. Reserved: the 5 % and 95 %
quantiles of the allocator study (leave-one-family-out), which also held for the measured runs.
`benchmarks/memory_calibration.py` makes both again.
"""

from dataclasses import dataclass

from loracle.domain.estimate import Range
from loracle.domain.setup import TrainingSetup

MEASURED = frozenset({"llama", "mistral", "qwen2"})  # architectures with measured runs, or alike
APPROXIMATE = frozenset({"qwen3_5_text", "gemma4_text", "gpt_oss"})  # parts folded into one step
REMOTE = frozenset({"chatglm", "baichuan", "internlm2", "internlm3", "minicpm"})


@dataclass(frozen=True, slots=True)
class Doubt:
    """Half-widths below and above, for tensors and for segments; `notes` are message ids."""

    tensors: float
    below: float
    above: float
    notes: tuple[str, ...] = ()

    def allocated(self, likely: float) -> Range:
        """Range of the allocated peak."""
        return Range.around(likely, self.tensors, self.tensors)

    def reserved(self, likely: float) -> Range:
        """Range of the reserved peak."""
        return Range.around(likely, self.below, self.above)


def doubt_of(setup: TrainingSetup) -> Doubt:
    """The doubt about a setup: wider where less of it was ever compared with a card."""
    tensors, notes = 0.01, []
    model = setup.model
    if model.model_type not in MEASURED:
        tensors = 0.02
    if model.model_type in REMOTE or not model.buildable:
        tensors, notes = 0.03, ["memory.note.remote_code"]
    if model.num_experts or model.model_type in APPROXIMATE:
        tensors, notes = 0.06, [*notes, "memory.note.approximate"]
    if setup.quant == "int8" or (setup.lora is not None and setup.lora.use_dora):
        tensors, notes = 0.06, [*notes, "memory.note.not_measured"]
    if setup.num_gpus > 1:
        tensors, notes = max(tensors, 0.04), [*notes, "memory.note.several_cards"]
    segments = (0.05, 0.1) if setup.gradient_checkpointing else (0.025, 0.045)
    return Doubt(tensors, segments[0] + tensors - 0.01, segments[1] + tensors - 0.01, tuple(notes))
