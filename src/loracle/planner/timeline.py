"""The job from the start of the machine to its return: what a rented hour is spent on.

Training is only part of the bill: on a 100 Mb/s line the weights of a 70B take three hours. The
values that no law knows (how long a set-up takes) are ranges in `Assumptions`, shown with the
plan and open to replacement by measured ones.
"""

from dataclasses import dataclass

from loracle.domain.estimate import Range, SpeedEstimate
from loracle.domain.gpu import Node
from loracle.domain.plan import Phase
from loracle.planner.work import Workload
from loracle.units import MB, MINUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a plan assumes about a machine until an audit has measured it.

    `network_bytes_per_s` serves where the offer states no line; a stated line is reached at 60 to
    95 %. `restart_share` is training time lost to interruptions and restarts.
    """

    setup_seconds: Range
    network_bytes_per_s: Range
    line_share: Range
    disk_bytes_per_s: Range
    tokenise_tokens_per_s: Range
    restart_share: Range


USUAL = Assumptions(
    setup_seconds=Range(4 * MINUTE, 8 * MINUTE, 20 * MINUTE),
    network_bytes_per_s=Range(10 * MB, 50 * MB, 200 * MB),
    line_share=Range(0.6, 0.85, 0.95),
    disk_bytes_per_s=Range(150 * MB, 500 * MB, 2000 * MB),
    tokenise_tokens_per_s=Range(2e5, 1e6, 4e6),
    restart_share=Range(0.0, 0.02, 0.10),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """What moves over the network and the disk: base weights, one checkpoint, the merged model."""

    download: float
    checkpoint: float
    merged: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalWork:
    """Evaluation: tokens of one pass over the held-out set, and how many passes there are."""

    tokens: float = 0.0
    passes: int = 0


def timeline(
    work: Workload,
    speed: SpeedEstimate,
    node: Node,
    moved: Bytes,
    *,
    num_checkpoints: int,
    evaluation: EvalWork,
    data_tokens: float,
    assume: Assumptions = USUAL,
) -> tuple[Phase, ...]:
    """The phases of the job on one machine, in order.

    Evaluation runs forward only: a third of the FLOPs of a training token, a half where the
    training step has no recomputation, so it is counted between the two. The merge reads the base
    and writes the merged model once.
    """
    training = _times(work.steps, speed.step_seconds)
    disk = assume.disk_bytes_per_s
    eval_tokens = evaluation.tokens * evaluation.passes
    phases = (
        ("setup", assume.setup_seconds),
        ("download", _line(node, assume).inverse(moved.download)),
        ("data", assume.tokenise_tokens_per_s.inverse(data_tokens)),
        ("train", training),
        ("evaluate", _forward_only(speed.tokens_per_s, eval_tokens)),
        ("save", disk.inverse(moved.checkpoint * num_checkpoints)),
        ("merge", disk.inverse(moved.download + moved.merged) if moved.merged else None),
        ("restarts", _times(training, assume.restart_share)),
    )
    return tuple(Phase(id=name, seconds=seconds) for name, seconds in phases if seconds is not None)


def _line(node: Node, assume: Assumptions) -> Range:
    if node.network_bytes_per_s is None:
        return assume.network_bytes_per_s
    return assume.line_share.scaled(node.network_bytes_per_s)


def _forward_only(tokens_per_s: Range, tokens: float) -> Range:
    slow, fast = tokens_per_s.low * 2, tokens_per_s.high * 4
    return Range(slow, tokens_per_s.likely * 3, fast).inverse(tokens)


def _times(left: Range, right: Range) -> Range:
    return Range(left.low * right.low, left.likely * right.likely, left.high * right.high)
