"""Measure one training run on a CUDA card and append a `loracle.measured-run/1` row.

    python benchmarks/lab/measure_run.py configs.json rows.jsonl DEADLINE_EPOCH INDEX

Random weights of a given config, full-length random tokens, one process a run. Imports may overlap
with other runs; a lock gives the card to one run at a time, so memory is exact. Speed is recorded
but is only worth trusting when the machine runs nothing else (`step_spread`).

The model is built as `src/loracle/dryrun/build.py` says: each Linear drawn in bf16 on the card and
packed to NF4, then everything else. Anything changed here has to be changed there.
"""

import fcntl
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import types

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

DEFAULTS = {
    "method": "qlora", "stack": "trl", "seq_len": 1024, "micro_batch": 1, "grad_accum": 1,
    "gradient_checkpointing": True, "checkpoint_every": 1, "attention": "sdpa",
    "optimizer": "paged_adamw_8bit", "kbit_upcast": False, "rank": 16, "targets": "attention",
    "dropout": 0.0, "steps": 6, "cap_gib": None, "eval_micro_batch": None, "save": False,
    "alloc_conf": None, "history": False,
}  # fmt: skip
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def build(config: dict, method: str, attention: str):
    """The model with random weights on the card."""
    import bitsandbytes as bnb
    import torch
    from torch import nn
    from transformers import AutoConfig, AutoModelForCausalLM

    cfg = AutoConfig.for_model(**config)
    cfg._attn_implementation = attention
    cfg.use_cache = False
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            cfg, dtype=torch.bfloat16, attn_implementation=attention
        )
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if method != "qlora" or type(module) is not nn.Linear or module is head:
            continue
        new = bnb.nn.Linear4bit(
            module.in_features, module.out_features, bias=module.bias is not None,
            compute_dtype=torch.bfloat16, compress_statistics=True, quant_type="nf4", device="meta",
        )  # fmt: skip
        w = torch.randn(
            module.out_features, module.in_features, device="cuda", dtype=torch.bfloat16
        )
        w = w * 0.02
        new.weight = bnb.nn.Params4bit(
            w, requires_grad=False, compress_statistics=True, quant_type="nf4"
        ).to("cuda")
        if module.bias is not None:
            zeros = torch.zeros(module.out_features, device="cuda", dtype=torch.bfloat16)
            new.bias = nn.Parameter(zeros, requires_grad=False)
        del w
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent) if parent else model, leaf, new)
    for name, p in list(model.named_parameters()):
        if p.device.type != "meta":
            continue
        parent, _, leaf = name.rpartition(".")
        if p.dim() == 1:
            t = torch.ones(p.shape, device="cuda", dtype=p.dtype)
        else:
            t = torch.randn(p.shape, device="cuda", dtype=p.dtype) * 0.02
        setattr(model.get_submodule(parent), leaf, nn.Parameter(t, requires_grad=method == "full"))
        del t
    for name, module in list(model.named_modules()):
        if "RotaryEmbedding" in type(module).__name__:
            parent, _, leaf = name.rpartition(".")
            try:
                new = type(module)(config=cfg).to("cuda")
            except TypeError:
                continue
            setattr(model.get_submodule(parent) if parent else model, leaf, new)
    for name, buffer in list(model.named_buffers()):
        if buffer.device.type == "meta":
            parent, _, leaf = name.rpartition(".")
            ones = torch.ones(buffer.shape, device="cuda", dtype=buffer.dtype)
            model.get_submodule(parent).register_buffer(leaf, ones, persistent=False)
    model.tie_weights()
    left = [n for n, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]
    assert not left, left
    if method == "qlora":
        model.is_loaded_in_4bit = True
        model.is_quantized = True
        model.quantization_method = "bitsandbytes"
    return model


def targets_of(c: dict):
    """PEFT's target_modules."""
    if c["targets"] == "attention":
        return ATTENTION
    return c["targets"] if c["targets"] == "all-linear" else c["targets"].split(",")


def run(c: dict) -> dict:
    """Train and read the counters."""
    import torch
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import TrainerCallback

    class Timer(TrainerCallback):
        def __init__(self) -> None:
            self.seconds = []

        def on_step_begin(self, *args, **kwargs) -> None:
            torch.cuda.synchronize()
            self.start = time.perf_counter()

        def on_step_end(self, *args, **kwargs) -> None:
            torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - self.start)

    out = {"fits": True, "error": None}
    timer = Timer()
    try:
        model = build(c["config"], c["method"], c["attention"])
        lora = LoraConfig(
            r=c["rank"], lora_alpha=2 * c["rank"], lora_dropout=c["dropout"], bias="none",
            task_type="CAUSAL_LM", target_modules=targets_of(c),
        )  # fmt: skip
        common = dict(
            output_dir=os.path.join(tempfile.gettempdir(), f"out{os.getpid()}"),
            per_device_train_batch_size=c["micro_batch"],
            gradient_accumulation_steps=c["grad_accum"], max_steps=c["steps"],
            gradient_checkpointing=c["gradient_checkpointing"], optim=c["optimizer"], bf16=True,
            logging_steps=1000, save_strategy="steps" if c["save"] else "no", save_steps=3,
            report_to=[], disable_tqdm=True, learning_rate=1e-4,
        )  # fmt: skip
        if c["gradient_checkpointing"]:
            kwargs = {"use_reentrant": False}
            if c["checkpoint_every"] > 1:
                kwargs["every_n_layers"] = c["checkpoint_every"]
            common["gradient_checkpointing_kwargs"] = kwargs
        if c["eval_micro_batch"]:
            common.update(
                eval_strategy="steps", eval_steps=3,
                per_device_eval_batch_size=c["eval_micro_batch"], prediction_loss_only=True,
            )  # fmt: skip
        rows = c["micro_batch"] * c["grad_accum"] * (c["steps"] + 1)
        vocab = c["config"]["vocab_size"]
        ids = torch.randint(
            5, vocab - 1, (rows, c["seq_len"]), generator=torch.Generator().manual_seed(0)
        )
        if c["stack"] == "trl":
            trainer = _sft(model, c, common, lora, ids, timer)
        else:
            if c["method"] == "qlora":
                if c["kbit_upcast"]:
                    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
                else:
                    for p in model.parameters():
                        p.requires_grad_(False)
            if c["method"] != "full":
                model = get_peft_model(model, lora)
                model.enable_input_require_grads()
            core = model.get_base_model() if hasattr(model, "get_base_model") else model
            core.is_quantized = core.is_loaded_in_4bit = False
            trainer = _plain(model, c, common, ids, timer)
        params = [p for p in trainer.model.parameters() if p.requires_grad]
        out["trainable"] = sum(p.numel() for p in params)
        out["train_dtype"] = str(params[0].dtype).removeprefix("torch.")
        del params
        gc.collect()
        torch.cuda.empty_cache()
        out["model_bytes"] = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        if c["cap_gib"]:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(c["cap_gib"] * 2**30 / total)
        if c["history"]:
            torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python")
        trainer.train()
        if c["history"]:
            write_history(os.path.join(os.path.dirname(c["rows"]) or ".", c["id"] + ".history"))
        stats = torch.cuda.memory_stats()
        out.update(
            peak_allocated_bytes=torch.cuda.max_memory_allocated(),
            peak_reserved_bytes=torch.cuda.max_memory_reserved(),
            retries=stats["num_alloc_retries"], device_used_bytes=nvml_used(),
        )  # fmt: skip
        counted = timer.seconds[2:] or timer.seconds[-1:]
        step = statistics.median(counted)
        tokens = c["seq_len"] * c["micro_batch"] * c["grad_accum"]
        out.update(
            step_s=step, tokens_per_s=tokens / step,
            step_spread=(max(counted) - min(counted)) / step,
        )  # fmt: skip
    except torch.cuda.OutOfMemoryError:
        out["fits"] = False
        out["reserved_at_failure_bytes"] = torch.cuda.max_memory_reserved()
    except Exception as error:  # noqa: BLE001  (a failed run must not stop the list)
        import traceback

        traceback.print_exc()
        out.update(fits=None, error=repr(error)[:300])
    return out


def _sft(model, c: dict, common: dict, lora, ids, timer):
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    if c["method"] == "qlora":
        config = types.SimpleNamespace(quant_method="bitsandbytes")
        model.hf_quantizer = types.SimpleNamespace(
            is_trainable=True, is_qat_trainable=False, quantization_config=config
        )
    vocab = {"a": 0, "<pad>": 1, "<eos>": 2}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token="a")),
        pad_token="<pad>", eos_token="<eos>",
    )  # fmt: skip
    data = Dataset.from_dict({"input_ids": ids.tolist(), "labels": ids.tolist()})
    args = SFTConfig(max_length=c["seq_len"], **common)
    return SFTTrainer(
        model=model, args=args, train_dataset=data, processing_class=tokenizer, callbacks=[timer],
        eval_dataset=data if c["eval_micro_batch"] else None,
        peft_config=None if c["method"] == "full" else lora,
    )  # fmt: skip


def _plain(model, c: dict, common: dict, ids, timer):
    import torch
    from transformers import Trainer, TrainingArguments

    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(ids)

        def __getitem__(self, i: int) -> dict:
            x = ids[i]
            return {"input_ids": x, "labels": x, "attention_mask": torch.ones_like(x)}

    return Trainer(
        model=model, args=TrainingArguments(**common), train_dataset=Data(), callbacks=[timer],
        eval_dataset=Data() if c["eval_micro_batch"] else None,
    )  # fmt: skip


def write_history(path: str) -> None:
    """The allocator's own log of the run: one line an event, action, bytes, address, place."""
    import gzip

    import torch

    events = torch.cuda.memory._snapshot()["device_traces"][0]
    with gzip.open(path + ".gz", "wt") as file:
        for e in events:
            frames = [f for f in e.get("frames", ()) if f["filename"].endswith(".py")][:2]
            where = " ".join(f"{f['filename'].rpartition('/')[2]}:{f['line']}" for f in frames)
            file.write(f"{e['action']} {e['size']} {e['addr']:x} {where}\n")


def nvml_used() -> int:
    """Bytes in use on the card as NVML sees them."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used


def row(c: dict, out: dict, meta: dict, context_bytes: int) -> dict:
    """The run in the schema of the calibration set."""
    full = c["method"] == "full"
    lora = None if full else {
        "rank": c["rank"],
        "targets": c["targets"].split(",") if "," in c["targets"] else c["targets"],
        "dropout": c["dropout"],
        "dtype": out.get("train_dtype"),
    }  # fmt: skip
    measured = {
        key: out.get(key)
        for key in (
            "model_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes",
            "tokens_per_s", "step_s", "step_spread", "retries", "reserved_at_failure_bytes",
        )
    }  # fmt: skip
    return {
        "schema": "loracle.measured-run/1", "id": c["id"],
        "model": {"hub_id": c["hub_id"], "config": c["config"]}, "method": c["method"],
        "quant": "nf4-double" if c["method"] == "qlora" else None, "stack": c["stack"],
        "kbit_upcast": c["kbit_upcast"], "base_dtype": "bfloat16", "autocast": "bfloat16",
        **{k: c[k] for k in ("seq_len", "micro_batch", "grad_accum", "gradient_checkpointing",
                             "checkpoint_every", "attention", "optimizer", "eval_micro_batch")},
        "lora": lora, "gpu": "H200 SXM 141GB", "num_gpus": 1,
        "memory_cap_bytes": c["cap_gib"] and int(c["cap_gib"] * 2**30),
        "fits": out["fits"], "error": out["error"], "saves_checkpoints": c["save"],
        "alloc_conf": c["alloc_conf"], "trainable_params": out.get("trainable"),
        "measured": {**measured, "context_bytes": context_bytes, "power_w": None},
        "software": meta,
        "source": "own measurement, random weights, full-length random tokens, no padding",
    }  # fmt: skip


def main() -> None:
    """One config of the list."""
    configs, path, deadline, index = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    c = {**DEFAULTS, **json.load(open(configs))[index], "rows": path}
    if c["alloc_conf"]:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = c["alloc_conf"]
    import accelerate
    import bitsandbytes
    import peft
    import torch
    import transformers
    import trl
    from trl import SFTTrainer  # noqa: F401

    transformers.logging.set_verbosity_error()
    lock = open(os.path.join(tempfile.gettempdir(), "gpu.lock"), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    if time.time() > deadline:
        print(c["id"], "skipped: past the deadline", flush=True)
        os._exit(0)
    start = time.time()
    idle = nvml_used()
    while time.time() - start < 8:  # the run before may still be handing its memory back
        time.sleep(0.2)
        now = nvml_used()
        if now == idle and now < 2**30:
            break
        idle = now
    before = nvml_used()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    context = nvml_used() - before
    versions = {
        "torch": torch.__version__, "transformers": transformers.__version__,
        "trl": trl.__version__, "peft": peft.__version__, "bnb": bitsandbytes.__version__,
        "accelerate": accelerate.__version__, "cudnn": str(torch.backends.cudnn.version()),
    }  # fmt: skip
    out = run(c)
    with open(path, "a") as file:
        file.write(json.dumps(row(c, out, versions, context)) + "\n")
    gib = {
        k: round((out.get(k) or 0) / 2**30, 3)
        for k in ("model_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")
    }
    print(
        c["id"],
        "fits",
        out["fits"],
        gib,
        out["error"] or "",
        f"{time.time() - start:.1f}s",
        flush=True,
    )
    os._exit(0)


if __name__ == "__main__":
    main()
