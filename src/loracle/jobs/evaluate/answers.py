"""What a model says, and how surprised it is by the reference: greedy answers and token losses.

All subjects get the same prompts in the same batches: 16-bit arithmetic depends on the shape of a
batch, so another grouping could change an answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loracle.catalog.datasets import Sample
from loracle.errors import RunError
from loracle.jobs.train.templates import IGNORED, encode, encode_prompt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Item:
    """One held-out row in tokens: the prompt, and prompt with answer and labels."""

    row: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    labels: tuple[int, ...]
    question: str
    reference: str | None

    @property
    def num_labels(self) -> int:
        """Tokens that are scored."""
        return sum(label != IGNORED for label in self.labels[1:])


@dataclass(frozen=True, slots=True)
class Answer:
    """What one model did with one item. `nll` is summed over `labels` tokens, in nats."""

    row: int
    text: str | None
    tokens: int  # generated
    ended: bool  # by a stop token, not by the limit
    nll: float
    labels: int


def make_items(
    samples: Sequence[Sample],
    tokenizer: "PreTrainedTokenizerBase",
    *,
    max_tokens: int,
    train_on: str = "auto",
) -> list[Item]:
    """Items in tokens, cut to what the model can take; the answer's room is left by the caller."""
    items = []
    for sample in samples:
        whole = encode(tokenizer, sample, train_on).cut(max_tokens)
        prompt = encode_prompt(tokenizer, sample) if sample.kind != "text" else []
        items.append(
            Item(
                row=sample.row,
                prompt=tuple(prompt),
                tokens=tuple(whole.input_ids),
                labels=tuple(whole.labels),
                question=sample.question,
                reference=sample.answer,
            )
        )
    return items


def refuse_unknown_ids(
    items: Sequence[Item], pad_id: int, weights: Sequence[str], tokenizer: str
) -> None:
    """Raise RunError E079 where a token has no row in a model's embedding.

    A tokenizer that was extended after training, or another model's. It would end in an index
    error on a CPU, and take the whole CUDA context along on a card.
    """
    from transformers import AutoConfig

    largest = max(pad_id, *(max((*item.prompt, *item.tokens), default=0) for item in items))
    for one in dict.fromkeys(weights):
        try:
            rows = AutoConfig.from_pretrained(one).get_text_config().vocab_size
        except (OSError, ValueError, AttributeError):
            continue  # loading the model will say what is wrong with it
        if largest >= rows:
            raise RunError(
                "error.evaluate.vocabulary", code="E079", hint="hint.evaluate.vocabulary",
                tokenizer=tokenizer, id=largest, rows=rows, path=one,
            )  # fmt: skip


def batches(items: Sequence[Item], size: int) -> list[list[Item]]:
    """Items of like length together, longest first, so that the first batch is the hardest."""
    ordered = sorted(items, key=lambda item: (-len(item.prompt) - len(item.tokens), item.row))
    return [list(ordered[start : start + size]) for start in range(0, len(ordered), size)]


def answer_all(
    model: "PreTrainedModel",
    grouped: Sequence[Sequence[Item]],
    *,
    stop_ids: Sequence[int],
    pad_id: int,
    max_new_tokens: int,
    tokenizer: "PreTrainedTokenizerBase",
    generates: bool,
) -> Iterator[list[Answer]]:
    """Answers batch by batch; text is None where nothing is generated."""
    import torch

    for group in grouped:
        with torch.inference_mode():
            losses = token_losses(model, group, pad_id)
            said: list[tuple[str | None, int, bool]] = [(None, 0, False)] * len(group)
            if generates:
                said = list(generate(model, group, stop_ids, pad_id, max_new_tokens, tokenizer))
        yield [
            Answer(item.row, text, count, ended, nll, item.num_labels)
            for item, (text, count, ended), nll in zip(group, said, losses, strict=True)
        ]


def token_losses(model: "PreTrainedModel", group: Sequence[Item], pad_id: int) -> list[float]:
    """Summed negative log-likelihood of each item's labelled tokens, in nats, in fp32."""
    import torch

    logits, labels = label_logits(model, group, pad_id)
    sums = [0.0] * len(group)
    for index, (rows, wanted) in enumerate(zip(logits, labels, strict=True)):
        for start in range(0, len(wanted), 512):  # a vocabulary of 150,000 in fp32 is large
            part = rows[start : start + 512].float()
            loss = torch.nn.functional.cross_entropy(
                part, wanted[start : start + 512], reduction="sum"
            )
            sums[index] += loss.item()
    return sums


def label_logits(
    model: "PreTrainedModel", group: Sequence[Item], pad_id: int
) -> tuple[list["torch.Tensor"], list["torch.Tensor"]]:
    """Per item: logits (labelled tokens, vocabulary) before each labelled token, and the labels.

    Right padding: with a causal model what follows a token cannot change it. Only the positions
    that some item needs go through the head, which is what large vocabularies spend memory on.
    """
    import torch

    device = model.device
    longest = max(len(item.tokens) for item in group)
    ids = torch.full((len(group), longest), pad_id, dtype=torch.long)
    mask = torch.zeros((len(group), longest), dtype=torch.long)
    for row, item in enumerate(group):
        ids[row, : len(item.tokens)] = torch.tensor(item.tokens)
        mask[row, : len(item.tokens)] = 1
    places = [[i for i, label in enumerate(one.labels) if i and label != IGNORED] for one in group]
    kept = sorted({place - 1 for row in places for place in row})
    logits = model(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        use_cache=False,
        logits_to_keep=torch.tensor(kept, device=device),
    ).logits
    if logits.shape[1] != len(kept):  # an architecture that always computes them all
        logits = logits[:, kept]
    column = {position: index for index, position in enumerate(kept)}
    found, labels = [], []
    for row, item in enumerate(group):
        index = torch.tensor([column[place - 1] for place in places[row]], device=device)
        found.append(logits[row].index_select(0, index.long()))
        wanted = [item.labels[place] for place in places[row]]
        labels.append(torch.tensor(wanted, dtype=torch.long, device=device))
    return found, labels


def generate(
    model: "PreTrainedModel",
    group: Sequence[Item],
    stop_ids: Sequence[int],
    pad_id: int,
    max_new_tokens: int,
    tokenizer: "PreTrainedTokenizerBase",
) -> Iterator[tuple[str, int, bool]]:
    """(text, tokens, ended) of each item: greedy, left-padded, stopped at any stop token."""
    import torch
    from transformers import GenerationConfig

    longest = max(len(item.prompt) for item in group)
    ids = torch.full((len(group), longest), pad_id, dtype=torch.long)
    mask = torch.zeros((len(group), longest), dtype=torch.long)
    for row, item in enumerate(group):
        ids[row, longest - len(item.prompt) :] = torch.tensor(item.prompt)
        mask[row, longest - len(item.prompt) :] = 1
    how = GenerationConfig(
        do_sample=False, num_beams=1, max_new_tokens=max_new_tokens, pad_token_id=pad_id,
        eos_token_id=list(stop_ids), use_cache=True, repetition_penalty=1.0,
    )  # fmt: skip
    out = model.generate(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device),
        generation_config=how,
    )  # fmt: skip
    stops = set(stop_ids)
    for row in out[:, longest:].tolist():
        end = next((place for place, token in enumerate(row) if token in stops), None)
        kept = row if end is None else row[:end]
        text = tokenizer.decode(kept, skip_special_tokens=True)
        yield text.strip(), len(kept), end is not None
