"""Which architectures keep documents apart in which layout, and that the probe says so of each."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from loracle.catalog.shapes import architectures as table
from loracle.errors import RunError
from loracle.jobs.train import attention
from loracle.jobs.train.collate import Collator
from loracle.jobs.train.isolation import Layout, keeps_apart, settle_layout, use_layout

_spec = importlib.util.spec_from_file_location(
    "architectures", Path(__file__).with_name("architectures.py")
)
architectures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(architectures)

FLAT = Layout(attention.NAME, flat=True, packing=True)
ROWS = Layout("sdpa", flat=False, packing=True)
BOTH, ONLY_ROWS, ONLY_FLAT, NEITHER = (True, True), (False, True), (True, False), (False, False)
FOUND = {
    name: found
    for found, names in {
        BOTH: "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 gpt2 gpt_bigcode "
              "gpt_neox starcoder2 olmo olmo2 olmo3 granite cohere cohere2 glm glm4 smollm3 "
              "exaone4 seed_oss arcee ernie4_5 apertus persimmon minicpm3 deepseek_v2 "
              "deepseek_v3 mixtral helium gptj qwen2_moe qwen3_moe phimoe olmoe granitemoe "
              "ministral gpt_neox glm4_moe gemma4_text",
        ONLY_ROWS: "stablelm nemotron",
        ONLY_FLAT: "opt biogpt",
        NEITHER: "falcon bloom mpt xglm mamba mamba2 jamba falcon_h1 qwen3_next qwen3_5_text lfm2 "
                 "gpt_oss",
    }.items()
    for name in names.split()
}  # fmt: skip


@pytest.fixture(autouse=True)
def _kernel(monkeypatch):
    """The varlen kernel's contract in its place: there is none on a CPU."""
    monkeypatch.setattr(attention, "_varlen", lambda: architectures.kernel_contract)
    attention._options.cache_clear()
    yield
    attention._options.cache_clear()


def setup_of(**changes):
    """What the probe asks of a setup."""
    plain = {
        "attention": "sdpa", "base_dtype": "float32", "autocast": None, "quant": None,
        "kbit_upcast": False,
        "micro_batch": 2, "eval_micro_batch": None, "packing": True,
        "model": SimpleNamespace(attention_softcap=None, num_experts=0),
    }  # fmt: skip
    return SimpleNamespace(**plain | changes)


def own_kernel(model):
    return "sdpa" if model._supports_sdpa else "eager"


def farthest_from_alone(model, layout, kernel):
    """The largest change of a logit by packing: three documents in one row, against each alone."""
    draw = torch.Generator().manual_seed(1)
    documents = [torch.randint(30, 100, (one,), generator=draw).tolist() for one in (9, 14, 6)]
    ids = [token for document in documents for token in document]
    row = {"input_ids": ids, "labels": ids, "seq_lengths": [9, 14, 6]}
    model.set_attn_implementation(kernel)
    with torch.no_grad():
        alone = [model(torch.tensor([one]), use_cache=False).logits[0] for one in documents]
        use_layout(model, layout)
        batch = Collator(0, layout.flat)([row])
        batch.pop("labels")
        packed = model(**batch, use_cache=False).logits[0]
    return max(
        (got - wanted).abs().max().item() / wanted.std().item()
        for got, wanted in zip(packed.split([9, 14, 6]), alone, strict=True)
    )


@pytest.mark.parametrize("name", FOUND)
def test_the_probe_agrees_with_logits_alone(name):
    flat, rows = FOUND[name]
    model = architectures.tiny_random_model(name)
    kernel = own_kernel(model)
    for layout, apart in ((FLAT, flat), (Layout(kernel, flat=False, packing=True), rows)):
        far = farthest_from_alone(model, layout, kernel)
        assert far < 1e-4 if apart else far > 1e-2, (layout, far)
        assert keeps_apart(model, setup_of(attention=kernel), layout) is apart, layout
    assert keeps_apart(model, setup_of(attention=kernel, packing=False),
                       Layout(kernel, flat=False, packing=False))  # fmt: skip


def test_the_catalog_says_what_is_found_here():
    """A plan packs by these words (`planner/packing.py`), long before there is a model to ask."""
    from transformers import CONFIG_MAPPING

    rows = {name: row for name, row in table().items() if name in CONFIG_MAPPING}
    assert set(rows) <= set(FOUND)
    for name, row in rows.items():
        assert ("flat" in row["apart"], "rows" in row["apart"]) == FOUND[name], name
    assert all(set(row["apart"]) <= {"flat", "rows"} for row in table().values())


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("qwen3", FLAT),
        ("stablelm", ROWS),
        ("falcon", Layout("sdpa", flat=False, packing=False)),
    ],
)
def test_packing_is_given_up_last(name, layout, monkeypatch):
    monkeypatch.setattr(attention, "usable", lambda *args, **kwargs: True)
    model = architectures.tiny_random_model(name)
    assert settle_layout(model, setup_of(), torch.device("cpu")) == layout


def test_a_kernel_that_leaves_out_a_part_of_attention_is_not_taken():
    """GPT-OSS's sinks: each document is apart, and yet its logits are not the model's."""
    model = architectures.tiny_random_model("gpt_oss")
    for layer in model.model.layers:
        torch.nn.init.constant_(layer.self_attn.sinks, 2.0)
    assert not keeps_apart(model, setup_of(attention="eager"), FLAT)


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_padding_that_changes_a_document_is_refused(micro_batch):
    """A model that looks both ways: alone in its batch it is never padded."""
    model = architectures.tiny_random_model("bert")
    setup = setup_of(packing=False, micro_batch=micro_batch)
    if micro_batch == 1:
        assert not settle_layout(model, setup, torch.device("cpu")).packing
        return
    with pytest.raises(RunError) as raised:
        settle_layout(model, setup, torch.device("cpu"))
    assert raised.value.code == "E074"


def test_the_probe_leaves_no_trace():
    model = architectures.tiny_random_model("llama").train()
    random = torch.get_rng_state()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    assert keeps_apart(model, setup_of(), ROWS)
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


def test_weights_that_are_no_numbers_prove_nothing():
    model = architectures.tiny_random_model("llama")
    model.model.norm.weight.data.fill_(float("nan"))
    assert keeps_apart(model, setup_of(), ROWS)


@pytest.mark.parametrize("fault", [RuntimeError("head_dim of v is not that of q"), ValueError()])
def test_a_kernel_that_refuses_the_models_widths_is_passed_over(monkeypatch, fault):
    """DeepSeek V2's values are narrower than its queries; on a card flash attention refuses."""

    def refuses(*arguments, **options):
        raise fault

    model = architectures.tiny_random_model("llama")
    monkeypatch.setattr(attention, "usable", lambda *_, **__: True)
    monkeypatch.setattr(attention, "_varlen", lambda: architectures.kernel_contract)
    monkeypatch.setattr(attention, "_call", refuses)
    layout = settle_layout(model, setup_of(), torch.device("cpu"))
    assert (layout, layout.passed_over) == (ROWS, (attention.NAME,))


def test_no_memory_for_the_probe_is_no_answer(monkeypatch):
    def empty(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    model = architectures.tiny_random_model("llama")
    monkeypatch.setattr(attention, "usable", lambda *_, **__: True)
    monkeypatch.setattr(attention, "_call", empty)
    with pytest.raises(torch.OutOfMemoryError):
        settle_layout(model, setup_of(), torch.device("cpu"))
