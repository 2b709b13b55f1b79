"""Packed documents see nothing of each other: logits and losses equal those of each one alone."""

import pytest
import torch

from loracle.jobs.train.collate import Collator
from loracle.jobs.train.templates import IGNORED

LENGTHS = (7, 12, 5)


@pytest.fixture(scope="module")
def model(tiny, tmp_path_factory):
    from transformers import AutoModelForCausalLM

    folder = tiny.make_model(tmp_path_factory.mktemp("packing"))
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def rows():
    draw = torch.Generator().manual_seed(0)
    documents = [torch.randint(3, 250, (one,), generator=draw).tolist() for one in LENGTHS]
    ids = [token for document in documents for token in document]
    return documents, {"input_ids": ids, "labels": list(ids), "seq_lengths": list(LENGTHS)}


def logits_of(model, **inputs):
    with torch.no_grad():
        return model(**inputs, use_cache=False).logits


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("flat", [False, True])
def test_logits_of_packed_documents_equal_those_alone(model, attention, flat):
    model.set_attn_implementation(attention)
    documents, row = rows()
    batch = Collator(0, flat)([row])
    packed = logits_of(
        model, input_ids=batch["input_ids"], position_ids=batch["position_ids"]
    )[0]  # fmt: skip
    start = 0
    for document in documents:
        alone = logits_of(model, input_ids=torch.tensor([document]))[0]
        assert torch.equal(packed[start : start + len(document)], alone) or torch.allclose(
            packed[start : start + len(document)], alone, rtol=0, atol=1e-6
        )
        start += len(document)


def test_an_all_ones_mask_would_break_it(model):
    """The fault that the collator avoids is real: the same rows with a mask give other logits."""
    model.set_attn_implementation("sdpa")
    _, row = rows()
    batch = Collator(0)([row])
    inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}
    right = logits_of(model, **inputs)
    wrong = logits_of(model, **inputs, attention_mask=torch.ones_like(batch["input_ids"]))
    assert (right - wrong).abs().max() > 0.01


def test_rows_of_a_batch_are_padded_at_the_end_without_touching_each_other(model):
    model.set_attn_implementation("sdpa")
    documents, row = rows()
    short = {"input_ids": documents[0], "labels": documents[0], "seq_lengths": [LENGTHS[0]]}
    batch = Collator(0)([row, short])
    assert batch["input_ids"].shape == (2, sum(LENGTHS))
    packed = logits_of(model, input_ids=batch["input_ids"], position_ids=batch["position_ids"])
    alone = logits_of(model, input_ids=torch.tensor([documents[0]]))[0]
    assert torch.allclose(packed[1, : LENGTHS[0]], alone, rtol=0, atol=1e-6)
    assert (batch["labels"][1, LENGTHS[0] :] == IGNORED).all()


def test_the_first_token_of_a_document_is_predicted_by_nothing():
    _, row = rows()
    labels = Collator(0)([row])["labels"][0]
    starts = [0, LENGTHS[0], LENGTHS[0] + LENGTHS[1]]
    assert [int(labels[start]) for start in starts] == [IGNORED] * 3
    assert (labels != IGNORED).sum() == sum(LENGTHS) - 3


def test_the_flat_layout_gives_bounds_and_pads_nothing():
    documents, row = rows()
    short = {"input_ids": documents[0], "labels": documents[0], "seq_lengths": [LENGTHS[0]]}
    batch = Collator(0, flat=True)([row, short])
    assert batch["input_ids"].shape == (1, sum(LENGTHS) + LENGTHS[0])
    assert batch["cu_seq_lens_q"].tolist() == [0, 7, 19, 24, 31]
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert batch["max_length_q"] == 12
    assert batch["position_ids"][0, :9].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]


def test_equally_long_documents_get_a_row_each(model):
    """Packed three to a row: the layout of plain rows, logits and labels as in the flat one."""
    model.set_attn_implementation("sdpa")
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 250, (6, 8), generator=draw)
    packed = [
        {"input_ids": part.flatten().tolist(), "labels": part.flatten().tolist(),
         "seq_lengths": [8] * 3}
        for part in ids.split(3)
    ]  # fmt: skip
    batch = Collator(0, flat=True)(packed)
    assert batch["input_ids"].tolist() == ids.tolist()
    assert batch["labels"][:, 0].tolist() == [IGNORED] * 6
    assert batch["labels"][:, 1:].tolist() == ids[:, 1:].tolist()
    assert batch.keys() == {"input_ids", "labels", "position_ids"}
    together = logits_of(model, input_ids=batch["input_ids"], position_ids=batch["position_ids"])
    alone = torch.cat([logits_of(model, input_ids=one[None]) for one in ids])
    assert torch.allclose(together, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("window", [None, 8, 3])
def test_rows_of_one_document_keep_a_sliding_window(monkeypatch, window):
    """SDPA takes no window, so a window shorter than the row is the kernel's."""
    from loracle.jobs.train import attention

    def contract(query, key, value, bounds, bounds_k, longest, longest_k, *, scale, window_size):
        parts = (bounds[1:] - bounds[:-1]).tolist()
        assert parts == [8, 8]
        rows = [one.unflatten(0, (2, 8)).transpose(1, 2) for one in (query, key, value)]
        return windowed(*rows, window_size[0] + 1).flatten(0, 1)

    def windowed(query, key, value, width):
        place = torch.arange(8)
        back = place[:, None] - place[None]
        seen = (back >= 0) & (back < (width or 8))
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return out.transpose(1, 2)

    monkeypatch.setattr(attention, "_varlen", lambda: contract)
    attention._options.cache_clear()
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, 1
    draw = torch.Generator().manual_seed(2)
    query, key, value = torch.randn(3, 2, 2, 8, 16, generator=draw)
    output, _ = attention._forward(module, query, key, value, None, sliding_window=window)
    attention._options.cache_clear()
    assert torch.allclose(output, windowed(query, key, value, window), atol=1e-6)


def test_the_varlen_kernel_gets_its_documents_through_a_real_model(model, monkeypatch):
    """On a CPU, with the kernel's contract in its place: (tokens, heads, dim), causal by bounds."""
    from loracle.jobs.train import attention

    called = []

    def contract(query, key, value, bounds, bounds_k, longest, longest_k, *, scale, window_size,
                 enable_gqa=False):  # fmt: skip
        called.append((longest, window_size, enable_gqa))
        assert query.shape[0] == key.shape[0] == int(bounds[-1])
        assert torch.equal(bounds, bounds_k)
        groups = query.shape[1] // key.shape[1]
        parts = (bounds[1:] - bounds[:-1]).tolist()
        documents = zip(*(one.split(parts) for one in (query, key, value)), strict=True)
        return torch.cat([attention._sdpa(*one, groups) for one in documents])

    documents, row = rows()
    batch = Collator(0, flat=True)([row])
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    model.set_attn_implementation("sdpa")
    alone = [logits_of(model, input_ids=torch.tensor([one]))[0] for one in documents]
    monkeypatch.setattr(attention, "_varlen", lambda: contract)
    attention._options.cache_clear()
    model.set_attn_implementation(attention.register())
    try:
        packed = logits_of(model, **inputs)[0]
        plain = logits_of(model, input_ids=torch.tensor([documents[1]]))[0]
    finally:
        model.set_attn_implementation("sdpa")
        attention._options.cache_clear()
    assert called == [(12, (-1, 0), True)] * 2  # once a layer; none where no bounds are given
    assert torch.allclose(packed, torch.cat(alone), rtol=0, atol=1e-6)
    assert torch.allclose(plain, alone[1], rtol=0, atol=1e-6)


def test_keys_are_repeated_only_where_the_kernel_refuses_groups(monkeypatch):
    """Kernels as older torch has them, without the flag: one takes grouped keys, one does not."""
    from loracle.jobs.train import attention

    def grouped(query, key, value, bounds, bounds_k, longest, longest_k, *, scale, window_size):
        parts = (bounds[1:] - bounds[:-1]).tolist()
        documents = zip(*(one.split(parts) for one in (query, key, value)), strict=True)
        groups = query.shape[1] // key.shape[1]
        return torch.cat([attention._sdpa(*one, groups) for one in documents])

    def strict(query, key, value, *rest, scale, window_size):
        if query.shape[1] != key.shape[1]:
            raise ValueError("as many key heads as query heads, please")
        return grouped(query, key, value, *rest, scale=scale, window_size=window_size)

    def wrong(query, *rest, scale, window_size):
        return query

    device, found = torch.device("cpu"), []
    monkeypatch.setattr(attention, "_repeats_keys", True)
    for kernel in (grouped, strict, wrong):
        monkeypatch.setattr(attention, "_varlen", lambda kernel=kernel: kernel)
        attention._options.cache_clear()
        usable = attention._settle_groups(device, torch.float32)
        found.append((usable, attention._repeats_keys))
    attention._options.cache_clear()
    assert found == [(True, False), (True, True), (False, True)]


def test_the_kernel_is_left_alone_without_a_card_and_with_softcaps():
    from loracle.jobs.train import attention

    assert not attention.usable(torch.device("cpu"), torch.bfloat16, softcapped=False)
    assert not attention.usable(torch.device("cuda"), torch.bfloat16, softcapped=True)
    assert not attention.usable(torch.device("cuda"), torch.float32, softcapped=False)
