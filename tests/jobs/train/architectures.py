"""Tiny random models of many architectures, and the packed kernel's contract for a CPU."""

import torch

COMMON = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "num_key_value_heads": 4,
}  # fmt: skip
DELTA = {
    "head_dim": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
OWN = {
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 64},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 256},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "mixtral": EXPERTS,
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_moe": EXPERTS | {"head_dim": 8},
    "phimoe": EXPERTS,
    "olmoe": EXPERTS,
    "granitemoe": EXPERTS,
    "gpt_oss": EXPERTS | {"head_dim": 8},
    "ministral": {"head_dim": 8},
    "gemma4_text": {
        "head_dim": 8, "global_head_dim": 8, "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 128, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "glm4_moe": EXPERTS | {
        "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "head_dim": 8,
    },
    "deepseek_v3": EXPERTS | LATENT | {
        "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    },
    "deepseek_v2": EXPERTS | LATENT | {
        "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "head_dim": 8,
    },
    "gptj": {"rotary_dim": 8},
    "helium": {"head_dim": 8},
    "minicpm3": LATENT,
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "expand": 2,
               "chunk_size": 8},
    "jamba": EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8,
                        "use_mamba_kernels": False, "mamba_dt_rank": 4},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8,
                  "mamba_chunk_size": 8},
    "qwen3_next": EXPERTS | DELTA | {"shared_expert_intermediate_size": 32},
    "qwen3_5_text": DELTA,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}  # fmt: skip


def tiny_random_model(architecture, **changes):
    """Two layers with weights large enough that tokens matter to each other."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        architecture, **COMMON | OWN.get(architecture, {}) | changes
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3)
    return model


def kernel_contract(
    query, key, value, bounds, bounds_k, longest, longest_k, *, scale, window_size,
    enable_gqa=False,
):  # fmt: skip
    """What torch's varlen kernel computes: causal attention within the bounds and the window."""
    groups = query.shape[1] // key.shape[1]
    parts = (bounds[1:] - bounds[:-1]).tolist()
    outputs = []
    for one in zip(*(tensor.split(parts) for tensor in (query, key, value)), strict=True):
        heads = [tensor.transpose(0, 1)[None] for tensor in one]
        heads[1:] = [tensor.repeat_interleave(groups, 1) for tensor in heads[1:]]
        place = torch.arange(len(one[0]))
        back = place[:, None] - place[None]
        seen = (back >= 0) & ((back <= window_size[0]) | (window_size[0] < 0))
        result = torch.nn.functional.scaled_dot_product_attention(
            *heads, attn_mask=seen, scale=scale
        )
        outputs.append(result[0].transpose(0, 1))
    return torch.cat(outputs)
