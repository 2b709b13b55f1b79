"""The passes between the products, counted again on the real layers of transformers and PEFT.

A CPU run of one and of two decoder layers under a dispatch mode lists every operation with its
operands; the difference is one layer. The formula's bytes and launches have to be those.
"""

import pytest

from loracle.catalog.shapes import shape_from_config
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.estimate.compute import step_ops

pytestmark = pytest.mark.slow

TOKENS = 64
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    "tie_word_embeddings": False,
}  # fmt: skip
PRODUCTS = {"mm", "gemm_4bit"}
ELSEWHERE = {"dequantize_4bit", "dequantize_blockwise", "add_"}  # unpacking and its scales


@pytest.mark.parametrize(
    ("targets", "quantised", "upcast"),
    [
        ("attention", False, False), ("all-linear", False, False), ("attention", True, False),
        ("attention", True, True), ("all-linear", True, True),
    ],
)  # fmt: skip
def test_bytes_and_launches_of_a_layer(monkeypatch, targets, quantised, upcast):
    import torch

    # PEFT asks whether CUDA's autocast is on; here it is the CPU's.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: True)
    one, two = (_counted(depth, targets, quantised, upcast) for depth in (1, 2))
    shape = shape_from_config({**CONFIG, "num_hidden_layers": 1})
    setup = TrainingSetup(
        model=shape, method="qlora" if quantised else "lora",
        quant="nf4" if quantised else None, stack="hf-trainer", kbit_upcast=upcast,
        seq_len=TOKENS, gradient_checkpointing=False,
        lora=LoraSetup(rank=8, targets=targets, dtype="float32"),
    )  # fmt: skip
    for phase in ("forward", "backward"):
        rows = [
            op for op in step_ops(setup) if op.kind == "elementwise" and op.phase == phase
        ]  # fmt: skip
        seen_bytes = two[phase][0] - one[phase][0]
        assert sum(op.bytes * op.count for op in rows) == pytest.approx(seen_bytes, rel=0.08)
        seen_launches = two[phase][1] - one[phase][1]
        assert sum(op.launches * op.count for op in rows) == pytest.approx(seen_launches, rel=0.1)


def _counted(depth, targets, quantised, upcast):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    model = _model(depth, targets, quantised, upcast)
    found = {"forward": [0.0, 0], "backward": [0.0, 0]}
    phase = "forward"

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            name = func._schema.name.split("::")[1]
            views = func._schema.returns and func._schema.returns[0].alias_info is not None
            if views or name in PRODUCTS | ELSEWHERE or "attention" in name or "empty" in name:
                return out
            tensors = [
                t for t in (*tree_leaves((args, kwargs)), *tree_leaves(out))
                if isinstance(t, torch.Tensor) and t.dim() > 1 and t.numel() % TOKENS == 0
            ]  # fmt: skip
            if name in ("_unsafe_view", "detach"):
                return out
            wide = [t for t in tensors if t.numel() // TOKENS >= 64]
            found[phase][0] += sum(t.numel() * t.element_size() for t in wide)
            found[phase][1] += 1
            return out

    ids = torch.randint(0, 999, (1, TOKENS))
    with Watch():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        phase = "backward"
        loss.backward()
    return found


def _model(depth, targets, quantised, upcast):
    import bitsandbytes as bnb
    import torch
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**CONFIG, num_hidden_layers=depth)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if quantised:
        for name, module in list(model.named_modules()):
            if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
                packed = bnb.nn.Linear4bit(
                    module.in_features, module.out_features, bias=False,
                    compute_dtype=torch.bfloat16, quant_type="nf4",
                )  # fmt: skip
                packed.weight = bnb.nn.Params4bit(
                    module.weight.data, requires_grad=False, quant_type="nf4"
                ).to("cpu")
                parent, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(parent), leaf, packed)
        model.is_loaded_in_4bit = True
        if upcast:
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    names += ["gate_proj", "up_proj", "down_proj"] if targets == "all-linear" else []
    model = get_peft_model(
        model, LoraConfig(r=8, lora_dropout=0.0, target_modules=names, task_type="CAUSAL_LM")
    )
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.enable_input_require_grads()
    return model.train()
