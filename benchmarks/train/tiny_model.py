"""A random two-layer Llama with a byte-level tokenizer and a ChatML template, made in a second.

For tests and soaks that ask whether the trainer does the right thing, not whether a model learns.
"""

import json
import random
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_tokenizer(template=TEMPLATE, *, bos=None, eos="<|im_end|>", pad="<|endoftext|>"):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIALS, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIALS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token=eos, pad_token=pad
    )
    tokenizer.chat_template = template
    return tokenizer


def make_model(folder: Path, *, dtype="float32", **tokenizer_options) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = make_tokenizer(**tokenizer_options)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama", hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=len(tokenizer),
        max_position_embeddings=512, tie_word_embeddings=False, eos_token_id=2, pad_token_id=0,
        bos_token_id=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_rows(count: int, seed: int = 0) -> list[dict]:
    """Sums of two numbers, as chats of 30 to 60 bytes."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        left, right = draw.randrange(1000), draw.randrange(1000)
        rows.append(
            {
                "messages": [
                    {"role": "user", "content": f"{left}+{right}"},
                    {"role": "assistant", "content": str(left + right)},
                ]
            }
        )
    return rows


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
