"""Losses and answers against transformers' own, one item at a time and without padding."""

import pytest
import torch

from loracle.catalog.datasets import read_dataset
from loracle.jobs.evaluate.answers import answer_all, batches, generate, make_items, token_losses
from loracle.jobs.evaluate.fidelity import capture, choose_groups, compare


@pytest.fixture(scope="module")
def loaded(base, held_out):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    items = make_items(read_dataset(held_out).samples, tokenizer, max_tokens=200)
    return model, tokenizer, items


def test_losses_are_those_of_transformers_without_padding(loaded):
    model, _, items = loaded
    uneven = [items[0], items[5], items[17]]
    found = token_losses(model, uneven, pad_id=0)
    for item, loss in zip(uneven, found, strict=True):
        ids, labels = torch.tensor([item.tokens]), torch.tensor([item.labels])
        with torch.no_grad():
            expected = float(model(input_ids=ids, labels=labels).loss)
        assert loss / item.num_labels == pytest.approx(expected, rel=1e-5)


def test_only_the_answer_is_scored(loaded):
    _, tokenizer, items = loaded
    labelled = [label for label in items[0].labels if label != -100]
    assert tokenizer.decode(labelled) == "red<|im_end|>"


def test_left_padded_answers_are_those_of_single_prompts(loaded):
    model, tokenizer, items = loaded
    group = sorted(items[:6], key=lambda item: len(item.prompt))
    assert len({len(item.prompt) for item in group} | {len(items[0].prompt) + 1}) > 1
    together = list(generate(model, group, [2], 0, 6, tokenizer))
    for item, (text, count, ended) in zip(group, together, strict=True):
        alone = model.generate(
            torch.tensor([item.prompt]), do_sample=False, max_new_tokens=6, eos_token_id=2,
            pad_token_id=0,
        )[0, len(item.prompt) :].tolist()  # fmt: skip
        kept = alone[: alone.index(2)] if 2 in alone else alone
        assert text == tokenizer.decode(kept, skip_special_tokens=True).strip()
        assert (count, ended) == (len(kept), 2 in alone)


def test_every_stop_token_stops(loaded):
    model, tokenizer, items = loaded
    first = next(generate(model, items[:1], [2], 0, 6, tokenizer))
    token = model.generate(
        torch.tensor([items[0].prompt]), do_sample=False, max_new_tokens=1, pad_token_id=0
    )[0, -1].item()
    stopped = next(generate(model, items[:1], [2, token], 0, 6, tokenizer))
    assert first[1] > 0
    assert stopped == ("", 0, True)


def test_loss_only_generates_nothing(loaded):
    model, tokenizer, items = loaded
    (group,) = answer_all(
        model, [items[:3]], stop_ids=[2], pad_id=0, max_new_tokens=4, tokenizer=tokenizer,
        generates=False,
    )  # fmt: skip
    assert [one.text for one in group] == [None] * 3
    assert all(one.nll > 0 for one in group)


def test_batches_hold_every_item_once(loaded):
    _, _, items = loaded
    grouped = batches(items, 7)
    assert sorted(item.row for group in grouped for item in group) == [item.row for item in items]
    assert max(len(group) for group in grouped) == 7


def test_kl_of_a_model_to_itself_is_zero_and_to_another_is_not(loaded, base):
    from transformers import AutoModelForCausalLM

    model, _, items = loaded
    groups = choose_groups(batches(items, 8), 400)
    reference = capture(model, groups, 0)
    same = compare(model, groups, reference, 0)
    assert (same.kl, same.top1) == (pytest.approx(0, abs=1e-12), 1.0)
    assert same.positions == sum(item.num_labels for item in items)
    assert same.score_bound == pytest.approx(0, abs=1e-5)
    other = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    with torch.no_grad():
        other.lm_head.weight.mul_(1.5)
    found = compare(other, groups, reference, 0)
    item, logits = items[0], None
    with torch.no_grad():
        logits = model(torch.tensor([item.tokens])).logits[0]
    places = [i - 1 for i, label in enumerate(item.labels) if label != -100]
    p, q = (torch.log_softmax(logits[places] * scale, -1) for scale in (1.0, 1.5))
    by_hand = float((p.exp() * (p - q)).sum(-1).mean())
    one = compare(other, [[item]], reference, 0)
    assert one.kl == pytest.approx(by_hand, rel=1e-4)
    assert found.top1 == 1.0  # scaling keeps the order
    assert found.kl > 1e-4
    answers = [compare(other, [[item]], reference, 0) for item in items]
    sums = [one.kl * one.positions for one in answers]
    mean, spread = sum(sums) / 30, torch.tensor(sums, dtype=torch.double).std().item()
    high = mean + 1.6991 * spread / 30**0.5  # t with 29 degrees of freedom, one side 5 %
    assert found.kl_answer_high == pytest.approx(high, rel=1e-3)
    assert found.score_bound == pytest.approx((high / 2) ** 0.5, rel=1e-3)
    assert one.score_bound is None  # one answer bounds nothing
