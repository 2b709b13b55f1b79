"""The merged folder against PEFT's own merge, bit by bit, and what may not be merged."""

import json
import shutil

import pytest
import torch
from tests.jobs.merge.conftest import gpt2, llama, logits, peft_merge, stored, train_adapter

from loracle.errors import MachineError, RunError
from loracle.jobs.merge import delta
from loracle.jobs.merge.merge import RECORD, merge

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS = {
    "plain": {"target_modules": LINEAR},
    "attention_only": {"target_modules": ["q_proj", "v_proj"]},
    "rslora": {"target_modules": LINEAR, "use_rslora": True},
    "patterns": {
        "target_modules": LINEAR,
        "rank_pattern": {"q_proj": 4, "layers.1.mlp.down_proj": 12},
        "alpha_pattern": {"v_proj": 3, "layers.0.self_attn.o_proj": 40},
    },
    "rslora_patterns": {
        "target_modules": LINEAR,
        "use_rslora": True,
        "rank_pattern": {"k_proj": 2},
        "alpha_pattern": {"up_proj": 5},
    },
    "dora": {"target_modules": LINEAR, "use_dora": True},
    "dora_rslora": {"target_modules": LINEAR, "use_dora": True, "use_rslora": True},
    "head": {"target_modules": [*LINEAR, "lm_head"]},
    "embedding": {"target_modules": [*LINEAR, "embed_tokens"]},
    "head_saved": {"target_modules": LINEAR, "modules_to_save": ["lm_head"]},
    "both_saved": {"target_modules": LINEAR, "modules_to_save": ["lm_head", "embed_tokens"]},
    "new_tokens": {"target_modules": LINEAR, "trainable_token_indices": {"embed_tokens": [5, 9]}},
    "gaussian": {"target_modules": LINEAR, "init_lora_weights": "gaussian"},
}


def assert_same_bits(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(ours[name].view(torch.uint8), tensor.contiguous().view(torch.uint8)), (
            name
        )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A bfloat16 Llama in at least 4 shards."""
    folder = llama(tmp_path_factory.mktemp("base") / "llama", shard_size="80KB")
    assert len(list(folder.glob("*.safetensors"))) >= 4
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_bit_identical_to_peft(base, tmp_path, kind):
    adapter = train_adapter(base, tmp_path / "adapter", **KINDS[kind])
    result = merge(adapter, base, tmp_path / "merged")
    reference = peft_merge(base, adapter)
    reference.save_pretrained(tmp_path / "reference")
    assert_same_bits(stored(tmp_path / "merged"), stored(tmp_path / "reference"))
    assert any(
        not torch.equal(a, b)
        for a, b in zip(stored(base).values(), stored(tmp_path / "merged").values(), strict=True)
    )
    assert result.shards == len(list(base.glob("*.safetensors")))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("use_dora", [False, True])
def test_other_dtypes_are_bit_identical(tmp_path, dtype, use_dora):
    base = llama(tmp_path / "base", dtype=dtype)
    adapter = train_adapter(base, tmp_path / "adapter", target_modules=LINEAR, use_dora=use_dora)
    merge(adapter, base, tmp_path / "merged")
    peft_merge(base, adapter).save_pretrained(tmp_path / "reference")
    assert_same_bits(stored(tmp_path / "merged"), stored(tmp_path / "reference"))


def test_blocks_of_rows_give_the_same_bits(base, tmp_path, monkeypatch):
    for kind in ("plain", "dora"):
        adapter = train_adapter(base, tmp_path / kind, **KINDS[kind])
        merge(adapter, base, tmp_path / f"{kind}-whole")
        with monkeypatch.context() as patch:
            patch.setattr(delta, "BLOCK_ELEMENTS", 64 * 7)
            merge(adapter, base, tmp_path / f"{kind}-blocks")
        assert_same_bits(stored(tmp_path / f"{kind}-blocks"), stored(tmp_path / f"{kind}-whole"))


@pytest.mark.parametrize("use_dora", [False, True])
def test_conv1d_is_transposed(tmp_path, use_dora):
    base = gpt2(tmp_path / "base")
    options = {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}
    adapter = train_adapter(base, tmp_path / "adapter", use_dora=use_dora, **options)
    merge(adapter, base, tmp_path / "merged")
    peft_merge(base, adapter).save_pretrained(tmp_path / "reference")
    assert_same_bits(stored(tmp_path / "merged"), stored(tmp_path / "reference"))


def test_bias_of_the_adapter(tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "base")
    for name, options in (("lora_bias", {"lora_bias": True}), ("lora_only", {"bias": "lora_only"})):
        adapter = train_adapter(
            tmp_path / "base", tmp_path / name, target_modules=["q_proj", "v_proj"], **options
        )
        merge(adapter, tmp_path / "base", tmp_path / f"{name}-merged")
        peft_merge(tmp_path / "base", adapter).save_pretrained(tmp_path / f"{name}-reference")
        assert_same_bits(
            stored(tmp_path / f"{name}-merged"), stored(tmp_path / f"{name}-reference")
        )


class TestTied:
    @pytest.fixture(scope="class")
    def tied(self, tmp_path_factory):
        return llama(tmp_path_factory.mktemp("tied") / "base", tied=True)

    @pytest.mark.parametrize(
        "options",
        [
            {"modules_to_save": ["lm_head"]},
            {"modules_to_save": ["embed_tokens"]},
            {"modules_to_save": ["lm_head", "embed_tokens"]},
            {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
            {"modules_to_save": ["lm_head"], "ensure_weight_tying": True},
            {"trainable_token_indices": {"embed_tokens": [5, 9]}},
            {},
        ],
        ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) or "plain",
    )
    def test_reloaded_model_says_what_the_adapter_says(self, tied, tmp_path, options):
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        adapter = train_adapter(tied, tmp_path / "a", target_modules=LINEAR, **options)
        merge(adapter, tied, tmp_path / "merged")
        ids = torch.randint(3, 300, (2, 20), generator=torch.Generator().manual_seed(3))
        unmerged = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32), adapter
        )
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
        expected, found = logits(unmerged, ids), logits(merged, ids)
        scale = expected.abs().max()
        assert (expected - found).abs().max() / scale < 0.02  # weights rounded once to bfloat16
        assert (expected - logits(unmerged.unload(), ids)).abs().max() / scale > 0.1

    @pytest.mark.parametrize("module", ["lm_head", "embed_tokens"])
    def test_lora_on_one_end_of_a_tie_is_refused(self, tied, tmp_path, module):
        adapter = train_adapter(tied, tmp_path / "a", target_modules=[*LINEAR, module])
        with pytest.raises(RunError) as caught:
            merge(adapter, tied, tmp_path / "merged")
        assert (caught.value.code, caught.value.message) == ("E065", "error.merge.cannot.tied")
        assert not (tmp_path / "merged").exists()


class TestRefused:
    @pytest.fixture(scope="class")
    def adapter(self, base, tmp_path_factory):
        return train_adapter(base, tmp_path_factory.mktemp("a") / "adapter", target_modules=LINEAR)

    def refused(self, adapter, base, out):
        with pytest.raises(RunError) as caught:
            merge(adapter, base, out)
        assert list(out.parent.glob(f"*{out.name}*")) == []
        return caught.value.code, caught.value.message.removeprefix("error.merge.")

    def edited(self, adapter, folder, **changes):
        shutil.copytree(adapter, folder)
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return folder

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"init_lora_weights": "pissa"}, "cannot.init"),
            ({"init_lora_weights": "pissa_niter_4"}, "cannot.init"),
            ({"init_lora_weights": "olora"}, "cannot.init"),
            ({"peft_type": "IA3"}, "cannot.peft_type"),
            ({"target_parameters": ["experts.gate_up_proj"]}, "cannot.target_parameters"),
            ({"layer_replication": [[0, 2]]}, "cannot.option"),
            ({"use_dora": True}, "cannot.dora_magnitude"),
        ],
    )
    def test_kinds(self, adapter, base, tmp_path, changes, reason):
        folder = self.edited(adapter, tmp_path / "a", **changes)
        assert self.refused(folder, base, tmp_path / "m") == ("E065", reason)

    def test_truncated_adapter(self, adapter, base, tmp_path):
        shutil.copytree(adapter, tmp_path / "a")
        weights = tmp_path / "a" / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        assert self.refused(tmp_path / "a", base, tmp_path / "m") == ("E077", "broken_weights")

    def test_broken_config(self, adapter, base, tmp_path):
        shutil.copytree(adapter, tmp_path / "a")
        (tmp_path / "a" / "adapter_config.json").write_text("{")
        assert self.refused(tmp_path / "a", base, tmp_path / "m") == ("E077", "broken_weights")

    def test_no_adapter(self, base, tmp_path):
        (tmp_path / "a").mkdir()
        assert self.refused(tmp_path / "a", base, tmp_path / "m") == ("E076", "no_adapter")

    def test_a_key_that_nobody_reads(self, adapter, base, tmp_path):
        from safetensors.torch import load_file, save_file

        shutil.copytree(adapter, tmp_path / "a")
        path = tmp_path / "a" / "adapter_model.safetensors"
        for extra, reason in (
            (
                "base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight",
                "cannot.unknown_key",
            ),
            ("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", "cannot.half"),
            ("base_model.model.model.layers.9.self_attn.q_norm.weight", "cannot.no_tensor"),
        ):
            tensors = load_file(adapter / "adapter_model.safetensors")
            save_file(tensors | {extra: torch.zeros(8, 64)}, path)
            assert self.refused(tmp_path / "a", base, tmp_path / "m") == ("E065", reason)

    def test_more_layers_than_the_base(self, base, tmp_path):
        deep = llama(tmp_path / "deep", layers=3)
        adapter = train_adapter(deep, tmp_path / "a", target_modules=LINEAR)
        assert self.refused(adapter, base, tmp_path / "m") == ("E065", "cannot.no_tensor")

    def test_wrong_base(self, adapter, tmp_path):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=320, hidden_size=96, intermediate_size=160, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(tmp_path / "other")
        assert self.refused(adapter, tmp_path / "other", tmp_path / "m") == ("E079", "wrong_base")

    def test_quantised_base(self, adapter, base, tmp_path):
        shutil.copytree(base, tmp_path / "b")
        config = json.loads((base / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
        (tmp_path / "b" / "config.json").write_text(json.dumps(config))
        assert self.refused(adapter, tmp_path / "b", tmp_path / "m") == ("E078", "quantised_base")

    def test_missing_shard(self, adapter, base, tmp_path):
        shutil.copytree(base, tmp_path / "b")
        sorted((tmp_path / "b").glob("*.safetensors"))[1].unlink()
        assert self.refused(adapter, tmp_path / "b", tmp_path / "m") == ("E078", "shard_missing")

    def test_truncated_shard(self, adapter, base, tmp_path):
        shutil.copytree(base, tmp_path / "b")
        shard = sorted((tmp_path / "b").glob("*.safetensors"))[1]
        shard.write_bytes(shard.read_bytes()[:-10])
        assert self.refused(adapter, tmp_path / "b", tmp_path / "m") == ("E077", "broken_weights")

    def test_existing_output_is_kept(self, adapter, base, tmp_path):
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "precious").write_text("x")
        with pytest.raises(RunError) as caught:
            merge(adapter, base, tmp_path / "m")
        assert caught.value.code == "E068"
        assert [one.name for one in (tmp_path / "m").iterdir()] == ["precious"]

    def test_full_disk_is_told_before_writing(self, adapter, base, tmp_path, monkeypatch):
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(MachineError) as caught:
            merge(adapter, base, tmp_path / "m")
        assert caught.value.code == "E053"
        assert list(tmp_path.iterdir()) == []

    def test_moe_experts_are_refused_with_the_reason(self, tmp_path):
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

        config = Qwen3MoeConfig(
            vocab_size=320, hidden_size=32, intermediate_size=64, moe_intermediate_size=32,
            num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
            num_experts=4, num_experts_per_tok=2,
        )  # fmt: skip
        Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "base")
        adapter = train_adapter(
            tmp_path / "base", tmp_path / "a", target_modules="all-linear", lora_dropout=0.0
        )
        code, reason = self.refused(adapter, tmp_path / "base", tmp_path / "m")
        assert code == "E065"
        assert reason in ("cannot.target_parameters", "cannot.experts")


class TestInterrupted:
    @pytest.fixture(scope="class")
    def adapter(self, base, tmp_path_factory):
        return train_adapter(base, tmp_path_factory.mktemp("a") / "adapter", target_modules=LINEAR)

    def test_an_interrupt_leaves_nothing(self, adapter, base, tmp_path):
        def interrupt(done, total):
            if done == total // 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            merge(adapter, base, tmp_path / "m", progress=interrupt)
        assert list(tmp_path.iterdir()) == []

    def test_a_killed_merge_leaves_nothing_that_looks_finished(self, adapter, base, tmp_path):
        import os
        import signal
        import subprocess
        import sys

        script = (
            "import os, signal, sys; from pathlib import Path\n"
            "from loracle.jobs.merge.merge import merge\n"
            "def die(done, total):\n"
            "    if done == total - 1: os.kill(os.getpid(), signal.SIGKILL)\n"
            "merge(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), progress=die)\n"
        )
        arguments = [sys.executable, "-c", script, str(adapter), str(base), str(tmp_path / "m")]
        assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
        (left,) = tmp_path.iterdir()
        assert left.name.startswith(".m.merging-")
        assert not (left / "config.json").exists()
        assert not (left / "model.safetensors.index.json").exists()
        merge(adapter, base, tmp_path / "m")  # the next one cleans up
        assert [one.name for one in tmp_path.iterdir()] == ["m"]
        assert os.listdir(tmp_path / "m")


class TestFolder:
    def test_index_config_tokenizer_and_stop_ids(self, base, tmp_path):
        with_files = tmp_path / "base"
        shutil.copytree(base, with_files)
        (with_files / "generation_config.json").write_text('{"eos_token_id": 2, "top_p": 0.9}')
        tokens = [{"content": "<|eot_id|>", "id": 7}, {"content": "</s>", "id": 2}]
        (with_files / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
        (with_files / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
        adapter = train_adapter(with_files, tmp_path / "a", target_modules=LINEAR)
        shutil.copyfile(with_files / "tokenizer.json", adapter / "tokenizer.json")
        (adapter / "tokenizer_config.json").write_text('{"eos_token": "</s>", "pad_token": "</s>"}')
        (adapter / "chat_template.jinja").write_text("{{ m.content }}<|eot_id|>")
        result = merge(adapter, with_files, tmp_path / "m", facts={"run": "r1"})
        out = tmp_path / "m"
        generation = json.loads((out / "generation_config.json").read_text())
        assert generation == {"eos_token_id": [2, 7], "top_p": 0.9, "pad_token_id": 2}
        assert result.stop_ids == (2, 7)
        assert (out / "chat_template.jinja").read_text() == "{{ m.content }}<|eot_id|>"
        assert "pad_token" in (out / "tokenizer_config.json").read_text()
        assert "quantization_config" not in json.loads((out / "config.json").read_text())
        index = json.loads((out / "model.safetensors.index.json").read_text())
        before = json.loads((base / "model.safetensors.index.json").read_text())
        assert index["weight_map"] == before["weight_map"]
        assert index["metadata"]["total_size"] == before["metadata"]["total_size"]
        record = json.loads((out / RECORD).read_text())
        assert (record["onto"], record["run"]) == ("base16", "r1")


class TestDequantised:
    @pytest.mark.parametrize("double", [True, False])
    def test_equals_the_4_bit_model_with_its_adapter(self, base, tmp_path, double):
        pytest.importorskip("bitsandbytes")
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig

        from loracle.jobs.merge.quantised import Nf4

        adapter = train_adapter(base, tmp_path / "a", target_modules=LINEAR)
        merge(adapter, base, tmp_path / "m", onto="dequantised", nf4=Nf4(double=double))
        how = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )  # fmt: skip
        four_bit = AutoModelForCausalLM.from_pretrained(
            base, quantization_config=how, dtype=torch.bfloat16
        )
        plain = four_bit.dequantize(dtype=torch.bfloat16)
        reference = PeftModel.from_pretrained(plain, adapter).merge_and_unload()
        theirs = {k: v for k, v in reference.state_dict().items() if k in stored(tmp_path / "m")}
        assert_same_bits(stored(tmp_path / "m"), theirs)
        base_bits = stored(base)["model.layers.0.self_attn.q_proj.weight"]
        assert not torch.equal(
            base_bits, stored(tmp_path / "m")["model.layers.0.self_attn.q_proj.weight"]
        )

    def test_needs_the_settings_of_training(self, base, tmp_path):
        adapter = train_adapter(base, tmp_path / "a", target_modules=LINEAR)
        with pytest.raises(RunError) as caught:
            merge(adapter, base, tmp_path / "m", onto="dequantised")
        assert caught.value.message == "error.merge.no_quant"
