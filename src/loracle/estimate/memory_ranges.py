"""How far the real peak may be from the likely one, and why.

Allocated: a share of the likely value, from the residuals against the measured runs and against
the dry run over every architecture. Reserved: that, and a share of what moves during the step,
from the 5 % and 95 % quantiles of the allocator study. `benchmarks/memory_calibration.py` prints
both.
"""

from dataclasses import dataclass

from loracle.domain.estimate import Range
from loracle.domain.setup import TrainingSetup
from loracle.estimate.slack import Shape

MEASURED = frozenset({"llama", "mistral", "qwen2"})  # architectures with measured runs, or alike
APPROXIMATE = frozenset({"qwen3_5_text", "gemma4_text", "gpt_oss"})  # parts folded into one step
LOADER = 0.005  # of the likely value: another loader leaves other holes
FILLED = 0.6  # of the holes that loading leaves: what small activations were seen to fill
LOGITS_DOMINATE = 3.0  # times one layer's forward peak
EAGER_BELOW = 0.25  # of the moving part: score matrices reuse each other's segments well

# Of the moving part, below and above: (checkpointed, whole logits)
_SEGMENTS = {
    (True, False): (0.11, 0.16),
    (True, True): (0.15, 0.10),
    (False, False): (0.02, 0.09),
    (False, True): (0.02, 0.06),
}


@dataclass(frozen=True, slots=True)
class Doubt:
    """Half-widths: of tensors on both sides, of segments below and above.

    `notes` are message ids that say why a range is wide.
    """

    tensors: float
    below: float
    above: float
    notes: tuple[str, ...] = ()

    def allocated(self, likely: float) -> Range:
        """Range of the allocated peak."""
        return Range.around(likely, self.tensors, self.tensors)

    def reserved(self, likely: float, allocated: float, moving: float, segments: Shape) -> Range:
        """Range of the reserved peak.

        `moving` bytes come and go during the step; what is allocated is always reserved. Where
        one copy of the logits is larger than a layer, the second step's checkpoints may settle in
        the segment that the first step's logits left, and the logits get another.
        """
        loading = segments.loading
        settled = segments.logits if segments.logits > LOGITS_DOMINATE * segments.forward else 0.0
        whole = likely * (self.tensors / 2 + LOADER)
        low = likely - whole - self.below * moving - FILLED * loading
        return Range(
            max(low, min(likely, allocated * (1 - self.tensors))),
            likely,
            likely + whole + self.above * moving + (settled if segments.checkpointed else 0.0),
        )


def doubt_of(setup: TrainingSetup) -> Doubt:
    """The doubt about a setup: wider where less of it was ever compared with a card."""
    model = setup.model
    tensors, notes = (0.01 if model.model_type in MEASURED else 0.02), []
    if not model.buildable:
        tensors, notes = 0.03, ["memory.note.remote_code"]
    if model.num_experts or model.model_type in APPROXIMATE:
        tensors, notes = 0.06, [*notes, "memory.note.approximate"]
    if setup.quant == "int8" or (setup.lora is not None and setup.lora.use_dora):
        tensors, notes = 0.06, [*notes, "memory.note.not_measured"]
    if setup.num_gpus > 1:
        tensors, notes = max(tensors, 0.04), [*notes, "memory.note.several_cards"]
    below, above = _SEGMENTS[setup.gradient_checkpointing, not setup.fused_head]
    if setup.attention == "eager":
        below += EAGER_BELOW
    return Doubt(tensors, below, above, tuple(notes))
