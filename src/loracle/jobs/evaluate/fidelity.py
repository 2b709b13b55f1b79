"""Is the merged model still the adapter? The two next-token distributions, side by side.

Answers are too coarse for this: two models that differ a little say the same most of the time.
The distributions on the held-out answers show every difference: KL in nats a token, and how often
the most likely token is the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loracle.jobs.evaluate.answers import Item, label_logits

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

FEWEST_ANSWERS = 6
CAPTURE_BYTES = 512 << 20  # log-probabilities of the reference kept in memory


@dataclass(frozen=True, slots=True)
class Fidelity:
    """`kl` is the mean KL(reference || model) in nats a token; `same_top` counts equal argmax.

    `kl_answer_high` is the upper 95 % limit of the mean KL of a whole answer; None for fewer than
    6 answers.
    """

    positions: int
    kl: float
    kl_99: float  # 99th percentile over positions
    same_top: int
    kl_answer_high: float | None = None

    @property
    def top1(self) -> float:
        """Share of positions where the most likely token is the same."""
        return self.same_top / self.positions

    @property
    def score_bound(self) -> float | None:
        """How far apart any score from 0 to 1 can be on sampled answers (Pinsker), at most 1."""
        if self.kl_answer_high is None:
            return None
        return min(1.0, (self.kl_answer_high / 2) ** 0.5)


def choose_groups(grouped: Sequence[Sequence[Item]], vocab_size: int) -> list[list[Item]]:
    """As many whole batches as their log-probabilities fit `CAPTURE_BYTES`; at least one."""
    chosen: list[list[Item]] = []
    room = CAPTURE_BYTES // (4 * vocab_size)
    for group in reversed(grouped):  # shortest first: more different items
        need = sum(item.num_labels for item in group)
        if chosen and need > room:
            break
        room -= need
        chosen.append(list(group))
    return chosen


def capture(
    model: "PreTrainedModel", grouped: Sequence[Sequence[Item]], pad_id: int
) -> dict[int, "torch.Tensor"]:
    """Log-probabilities (labelled tokens, vocabulary) of each item by row, in fp32 on the CPU."""
    import torch

    found = {}
    with torch.inference_mode():
        for group in grouped:
            logits, _ = label_logits(model, group, pad_id)
            for item, rows in zip(group, logits, strict=True):
                found[item.row] = torch.log_softmax(rows.float(), -1).cpu()
    return found


def compare(
    model: "PreTrainedModel",
    grouped: Sequence[Sequence[Item]],
    reference: Mapping[int, "torch.Tensor"],
    pad_id: int,
) -> Fidelity:
    """How far a model's distributions are from captured ones, over the same positions."""
    import torch

    kls: list[torch.Tensor] = []  # of one answer each
    same = 0
    with torch.inference_mode():
        for group in grouped:
            logits, _ = label_logits(model, group, pad_id)
            for item, rows in zip(group, logits, strict=True):
                expected = reference[item.row].to(rows.device)
                found = torch.log_softmax(rows.float(), -1)
                width = min(expected.shape[-1], found.shape[-1])  # padded vocabularies
                expected, found = expected[:, :width], found[:, :width]
                kls.append((expected.exp() * (expected - found)).sum(-1).double().cpu())
                same += int((expected.argmax(-1) == found.argmax(-1)).sum())
    every = torch.cat(kls).clamp_min(0)
    return Fidelity(
        positions=len(every),
        kl=float(every.mean()),
        kl_99=float(every.quantile(0.99)),
        same_top=same,
        kl_answer_high=_high([float(one.clamp_min(0).sum()) for one in kls]),
    )


def _high(answers: Sequence[float]) -> float | None:
    """Upper 95 % limit of the mean (Student's)."""
    from statistics import fmean, stdev

    from scipy.stats import t

    count = len(answers)
    if count < FEWEST_ANSWERS:
        return None
    return fmean(answers) + float(t.ppf(0.95, count - 1)) * stdev(answers) / count**0.5
