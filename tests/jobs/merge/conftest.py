"""Tiny real models and adapters, made by transformers and PEFT themselves."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")


def llama(folder, *, tied=False, shard_size="5GB", dtype=None, layers=2):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=160, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(dtype or torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def gpt2(folder):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(7)
    config = GPT2Config(vocab_size=300, n_positions=64, n_embd=48, n_layer=2, n_head=4)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def train_adapter(base, folder, *, steps=3, **options):
    """An adapter that has really learned something, saved as PEFT saves it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    options = {"r": 8, "lora_alpha": 16, "task_type": "CAUSAL_LM"} | options
    tuned = get_peft_model(model, LoraConfig(**options))
    trained = [one for one in tuned.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02)
    ids = torch.randint(3, 300, (4, 24))
    for _ in range(steps):
        loss = tuned(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tuned.save_pretrained(folder)
    return folder


def peft_merge(base, adapter):
    """PEFT's own merge of a 16-bit base: state dict by name."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    return PeftModel.from_pretrained(model, adapter).merge_and_unload()


def stored(folder):
    """Every tensor of a model folder, read by the safetensors library."""
    from safetensors.torch import load_file

    return {
        k: v for path in sorted(folder.glob("*.safetensors")) for k, v in load_file(path).items()
    }


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits.float()
