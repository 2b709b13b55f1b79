"""Read a card's physical rates: the constants that the speed laws may then take as measured.

    python benchmarks/speed/microbench.py OUT.json [SECONDS]

Needs torch; bitsandbytes, transformers and peft add their sections where they are installed.
Every section stands alone: one that fails leaves its error in the JSON and the others go on.
Times are the median of several CUDA-event readings after a warm-up, on random normal data
(zeros draw less power and look faster than real weights).
"""
# ruff: noqa: B023 - every closure here runs before its loop goes on

import json
import statistics
import sys
import time
import traceback

import torch
from torch import nn
from torch.nn import functional

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
STARTED = time.perf_counter()
LIMIT = float(sys.argv[2]) if len(sys.argv) > 2 else 90.0
SMALL = not CUDA


def wait():
    if CUDA:
        torch.cuda.synchronize()


def seconds(run, repeats=5, budget=0.12):
    """Median seconds of one call on the card, launch gaps hidden by queueing several."""
    run()
    wait()
    start = time.perf_counter()
    run()
    wait()
    once = max(time.perf_counter() - start, 1e-6)
    inner = max(1, min(50, int(budget / repeats / once)))
    found = []
    for _ in range(repeats):
        if CUDA:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(inner):
                run()
            end.record()
            wait()
            found.append(begin.elapsed_time(end) / 1000 / inner)
        else:
            begin = time.perf_counter()
            for _ in range(inner):
                run()
            found.append((time.perf_counter() - begin) / inner)
    return statistics.median(found)


def host_seconds(run, calls=300):
    """Seconds of CPU that one call takes to launch: the queue is never waited for."""
    for _ in range(20):
        run()
    wait()
    best = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best.append((time.perf_counter() - start) / calls)
        wait()
    return statistics.median(best)


def randn(*shape, dtype=torch.bfloat16, grad=False):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype).requires_grad_(grad)


def gemm():
    """y = x W^T (forward), dx = dy W (backward) and dW = dy^T x, by shape and dtype."""
    rows = []
    weights = [(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (28672, 8192)]
    heights = [256, 512, 1024, 2048, 4096, 8192, 16384]
    if SMALL:
        weights, heights = [(64, 64)], [32]
    for out, inp in weights:
        weight = randn(out, inp)
        for m in heights:
            x, dy = randn(m, inp), randn(m, out)
            forward = seconds(lambda x=x: functional.linear(x, weight), 3, 0.05)
            backward = seconds(lambda dy=dy: dy @ weight, 3, 0.05)
            rows.append(
                {"dtype": "bfloat16", "m": m, "n": out, "k": inp,
                 "forward_flops_per_s": 2 * m * out * inp / forward,
                 "backward_flops_per_s": 2 * m * out * inp / backward}
            )  # fmt: skip
        del weight
    for out, inp in [(16, 4096), (4096, 16), (64, 4096), (4096, 64), (16, 14336)]:
        for dtype in (torch.bfloat16, torch.float32):
            for m in (1024, 8192):
                x, weight, dy = (
                    randn(m, inp, dtype=dtype), randn(out, inp, dtype=dtype),
                    randn(m, out, dtype=dtype),
                )  # fmt: skip
                rows.append(
                    {"dtype": str(dtype)[6:], "m": m, "n": out, "k": inp, "lora": True,
                     "forward_s": seconds(lambda: functional.linear(x, weight), 3, 0.02),
                     "backward_s": seconds(lambda: dy @ weight, 3, 0.02),
                     "weight_grad_s": seconds(lambda: dy.t() @ x, 3, 0.02)}
                )  # fmt: skip
    for dtype in (torch.float16, torch.float32):
        shapes = [(8192, 4096, 4096), (2048, 4096, 4096), (4096, 32000, 4096)]
        for m, out, inp in [(32, 64, 64)] if SMALL else shapes:
            x, weight = randn(m, inp, dtype=dtype), randn(out, inp, dtype=dtype)
            took = seconds(lambda: functional.linear(x, weight), 3, 0.05)
            rows.append({"dtype": str(dtype)[6:], "m": m, "n": out, "k": inp,
                         "forward_flops_per_s": 2 * m * out * inp / took})  # fmt: skip
    x, weight = randn(4096, 4096), randn(128256 if CUDA else 64, 4096)
    took = seconds(lambda: functional.linear(x, weight), 3, 0.05)
    rows.append({"dtype": "bfloat16", "m": 4096, "n": len(weight), "k": 4096, "head": True,
                 "forward_flops_per_s": 2 * 4096 * weight.numel() / took})  # fmt: skip
    return rows


def sustained():
    """A training-like stream of large matrix products for 4 s: what the power limit leaves."""
    n = 8192 if CUDA else 128
    a, b = randn(n, n), randn(n, n)
    found, started = [], time.perf_counter()
    while time.perf_counter() - started < (4 if CUDA else 0.1):
        found.append(2 * n**3 / seconds(lambda: a @ b, 1, 0.2))
    return {"first": found[0], "last": statistics.median(found[-5:])}


def bandwidth():
    """Bytes read and written a second by size and kind of pass."""
    rows = []
    for megabytes in (2, 8, 32, 128, 512) if CUDA else (1,):
        n = megabytes * 2**20 // 2
        x, y = randn(n), randn(n)
        z = torch.empty(n, device=DEVICE, dtype=torch.float32)
        rows.append(
            {"tensor_bytes": 2 * n,
             "copy": 4 * n / seconds(lambda: y.copy_(x), 3, 0.03),
             "add": 6 * n / seconds(lambda: torch.add(x, y), 3, 0.03),
             "cast_to_fp32": 6 * n / seconds(lambda: z.copy_(x), 3, 0.03),
             "silu": 4 * n / seconds(lambda: functional.silu(x), 3, 0.03),
             "dropout": 5 * n / seconds(lambda: torch.native_dropout(x, 0.05, True), 3, 0.03)}
        )  # fmt: skip
    m, v = (4096, 128256) if CUDA else (32, 100)
    logits = randn(m, v, dtype=torch.float32, grad=True)
    labels = torch.randint(0, v, (m,), device=DEVICE)

    def loss():
        logits.grad = None
        functional.cross_entropy(logits, labels).backward()

    rows.append({"cross_entropy_fp32_bytes_per_s_per_4_bytes": 4 * m * v / seconds(loss, 3, 0.05)})
    return rows


def attention():
    """Seconds of scaled dot-product attention forward, and forward with backward."""
    rows = []
    cases = [
        (1, 32, 32, 512, 128), (1, 32, 32, 1024, 128), (1, 32, 32, 2048, 128),
        (4, 32, 32, 2048, 128), (1, 32, 32, 4096, 128), (1, 32, 32, 8192, 128),
        (1, 32, 32, 16384, 128), (4, 32, 8, 2048, 128), (4, 14, 2, 2048, 64),
        (4, 32, 32, 2048, 96), (2, 16, 16, 2048, 256),
    ] if CUDA else [(1, 2, 2, 16, 8)]  # fmt: skip
    for batch, heads, kv, length, width in cases:
        q, k, v = (randn(batch, h, length, width, grad=True) for h in (heads, kv, kv))
        k2, v2 = (t.repeat_interleave(heads // kv, 1).detach().requires_grad_() for t in (k, v))
        row = {"batch": batch, "heads": heads, "length": length, "head_dim": width}
        grad = torch.randn_like(q)

        def both(q=q, k2=k2, v2=v2, grad=grad):
            functional.scaled_dot_product_attention(q, k2, v2, is_causal=True).backward(grad)

        with torch.no_grad():
            row["causal_forward_s"] = seconds(
                lambda q=q, k2=k2, v2=v2: functional.scaled_dot_product_attention(
                    q, k2, v2, is_causal=True
                ), 3, 0.03)  # fmt: skip
        row["causal_both_s"] = seconds(both, 3, 0.05)
        if length == 2048:
            mask = torch.ones(batch, 1, length, length, device=DEVICE, dtype=torch.bool).tril()

            def masked(q=q, k2=k2, v2=v2, grad=grad, mask=mask):
                functional.scaled_dot_product_attention(q, k2, v2, mask).backward(grad)

            def eager(q=q, k2=k2, v2=v2, grad=grad, mask=mask, width=width):
                scores = (q @ k2.transpose(2, 3)) * width**-0.5
                scores = scores + mask.logical_not().to(q.dtype) * -1e4
                weights = functional.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
                (weights @ v2).backward(grad)

            row["masked_both_s"] = seconds(masked, 3, 0.05)
            row["eager_both_s"] = seconds(eager, 3, 0.05)
        rows.append(row)
    return rows


def launches():
    """CPU seconds to launch, and the card's own time for kernels that do almost nothing."""
    x = randn(256, 256)
    weight = randn(256, 256)
    small = nn.Linear(256, 256, bias=False, device=DEVICE, dtype=torch.bfloat16)
    grad_x = randn(256, 256, grad=True)

    def autograd():
        functional.silu(grad_x).sum().backward()

    def autocast_linear():
        with torch.autocast(DEVICE, torch.bfloat16):
            small(x)

    found = {
        "add_host_s": host_seconds(lambda: torch.add(x, x)),
        "linear_host_s": host_seconds(lambda: functional.linear(x, weight)),
        "module_linear_autocast_host_s": host_seconds(autocast_linear),
        "three_op_backward_host_s": host_seconds(autograd),
        "add_card_s": seconds(lambda: torch.add(x, x), 5, 0.05),
    }
    if CUDA:
        graph = torch.cuda.CUDAGraph()
        out = torch.empty_like(x)
        torch.add(x, x, out=out)
        wait()
        with torch.cuda.graph(graph):
            for _ in range(200):
                torch.add(x, x, out=out)
        found["add_in_graph_s"] = seconds(graph.replay, 5, 0.05) / 200
        found["synchronize_s"] = host_seconds(lambda: (torch.add(x, x), wait()), 100)
    return found


def dequant():
    """bitsandbytes: seconds to turn an NF4 weight into bf16, and its matmul's CPU cost."""
    import bitsandbytes as bnb
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    rows = []
    for out, inp in [(1024, 4096), (4096, 4096), (14336, 4096), (28672, 8192)] if CUDA else []:
        for double in (True, False):
            packed, state = quantize_4bit(
                randn(out, inp), quant_type="nf4", compress_statistics=double
            )
            rows.append(
                {"n": out, "k": inp, "double": double,
                 "seconds": seconds(lambda p=packed, s=state: dequantize_4bit(p, s), 5, 0.05),
                 "host_s": host_seconds(lambda p=packed, s=state: dequantize_4bit(p, s), 100)}
            )  # fmt: skip
    layer = bnb.nn.Linear4bit(256, 256, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    layer = layer.to(DEVICE)
    x = randn(256, 256, grad=True)
    grad = randn(256, 256)
    return {
        "weights": rows,
        "linear_forward_host_s": host_seconds(lambda: layer(x), 100),
        "linear_both_host_s": host_seconds(lambda: layer(x).backward(grad), 100),
    }


def optimizers():
    """Seconds of one optimizer step with clipping over LoRA-like adapters (224 x 2 tensors)."""
    rows = []
    kinds = {
        "adamw_torch": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=True),
        "adamw_torch_fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    }
    try:
        import bitsandbytes as bnb

        kinds["adamw_8bit"] = lambda p: bnb.optim.AdamW8bit(p, lr=1e-4)
        kinds["paged_adamw_8bit"] = lambda p: bnb.optim.PagedAdamW8bit(p, lr=1e-4)
        kinds["paged_adamw_32bit"] = lambda p: bnb.optim.PagedAdamW32bit(p, lr=1e-4)
    except ImportError:
        pass
    for name, make in kinds.items() if CUDA else ():
        for tensors, rank in ((128, 16), (448, 16), (448, 64)):
            params = [nn.Parameter(randn(rank, 4096, dtype=torch.float32)) for _ in range(tensors)]
            for p in params:
                p.grad = torch.randn_like(p)
            optimizer = make(params)

            def step(optimizer=optimizer, params=params):
                nn.utils.clip_grad_norm_(params, 1.0)
                optimizer.step()

            rows.append({"optimizer": name, "tensors": tensors, "elements": params[0].numel(),
                         "seconds": seconds(step, 3, 0.1)})  # fmt: skip
        big = [nn.Parameter(randn(4096, 4096)) for _ in range(8)]
        for p in big:
            p.grad = torch.randn_like(p)
        optimizer = make(big)
        rows.append({"optimizer": name, "tensors": 8, "elements": big[0].numel(),
                     "dtype": "bfloat16", "seconds": seconds(optimizer.step, 3, 0.1)})  # fmt: skip
    return rows


def layers():
    """CPU time of a real decoder layer: tiny widths leave the card idle, so launching is all.

    The slope between 4 and 12 layers is one layer's cost; the intercept is embedding, loss,
    Trainer-less loop and optimizer.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    rows = []
    attention_names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    for targets in ("attention", "all-linear"):
        for quantised in (False, True):
            for recompute in (True, False):
                found = {}
                for depth in (4, 12):
                    if time.perf_counter() - STARTED > LIMIT:
                        return rows
                    config = AutoConfig.for_model(
                        "llama", hidden_size=256, intermediate_size=512, num_hidden_layers=depth,
                        num_attention_heads=4, num_key_value_heads=4, vocab_size=1000,
                    )  # fmt: skip
                    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
                    if quantised:
                        _quantise(model)
                    model = model.to(DEVICE)
                    model.is_loaded_in_4bit = quantised
                    model = get_peft_model(
                        model,
                        LoraConfig(
                            r=16, lora_alpha=32, lora_dropout=0.05, task_type="CAUSAL_LM",
                            target_modules=attention_names + (
                                [] if targets == "attention"
                                else ["gate_proj", "up_proj", "down_proj"]),
                        ),
                    )  # fmt: skip
                    for p in model.parameters():
                        if p.requires_grad:
                            p.data = p.data.float()
                    model.enable_input_require_grads()
                    model.train()
                    if recompute:
                        model.gradient_checkpointing_enable({"use_reentrant": False})
                    ids = torch.randint(0, 999, (1, 64), device=DEVICE)

                    def step(model=model, ids=ids):
                        with torch.autocast(DEVICE, torch.bfloat16):
                            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
                        loss.backward()

                    for _ in range(4):
                        step()
                    wait()
                    times = []
                    for _ in range(8):
                        start = time.perf_counter()
                        step()
                        wait()
                        times.append(time.perf_counter() - start)
                    found[depth] = statistics.median(times)
                rows.append({"targets": targets, "nf4": quantised, "recompute": recompute,
                             "layer_s": (found[12] - found[4]) / 8,
                             "rest_s": found[4] - (found[12] - found[4]) / 2})  # fmt: skip
    return rows


def profile():
    """Kernel by kernel: one training step of four 7B-sized layers, by torch's own profiler."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from torch.profiler import ProfilerActivity
    from transformers import AutoConfig, AutoModelForCausalLM

    found = []
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 4,
             "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000}  # fmt: skip
    for quantised, upcast in ((True, True), (True, False), (False, False)) if CUDA else ():
        config = AutoConfig.for_model("llama", **sizes)
        with torch.device(DEVICE):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        if quantised:
            model = model.cpu()
            _quantise(model)
            model = model.to(DEVICE)
            model.is_loaded_in_4bit = True
            if upcast:
                model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
        lora = LoraConfig(r=16, lora_dropout=0.05, task_type="CAUSAL_LM", target_modules=targets)
        model = get_peft_model(model, lora)
        for p in model.parameters():
            if p.requires_grad:
                p.data = p.data.float()
        model.enable_input_require_grads()
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        ids = torch.randint(0, 31999, (4, 2048), device=DEVICE)

        def step(model=model, ids=ids):
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()

        for _ in range(3):
            step()
        wait()
        start = time.perf_counter()
        step()
        wait()
        took = time.perf_counter() - start
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
            step()
            wait()
        kernels = sorted(
            ((event.key[:110], event.count, event.self_device_time_total)
             for event in seen.key_averages()), key=lambda row: -row[2],
        )  # fmt: skip
        found.append({"nf4": quantised, "upcast": upcast, "tokens": 8192, "step_s": took,
                      "kernels_us": kernels[:60], "sum_us": sum(k[2] for k in kernels),
                      "num_kernels": sum(k[1] for k in kernels)})  # fmt: skip
        del model
    return found


def _quantise(model):
    import bitsandbytes as bnb

    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and "lm_head" not in name:
            new = bnb.nn.Linear4bit(
                module.in_features, module.out_features, bias=False,
                compute_dtype=torch.bfloat16, quant_type="nf4",
            )  # fmt: skip
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, new)


def main():
    out = {"torch": torch.__version__, "device": DEVICE, "date": time.strftime("%Y-%m-%d")}
    if CUDA:
        properties = torch.cuda.get_device_properties(0)
        out |= {"card": properties.name, "sms": properties.multi_processor_count}
    sections = (
        gemm, bandwidth, attention, launches, dequant, layers, profile, optimizers, sustained,
    )  # fmt: skip
    for section in sections:
        began = time.perf_counter()
        if began - STARTED > LIMIT:
            out[section.__name__] = {"skipped": "time"}
            continue
        try:
            out[section.__name__] = section()
        except Exception:  # noqa: BLE001 - a section that fails must not lose the others
            out[section.__name__] = {"error": traceback.format_exc()[-1500:]}
        out.setdefault("took_s", {})[section.__name__] = time.perf_counter() - began
        if CUDA:
            torch.cuda.empty_cache()
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(out, file, indent=1)
    print(json.dumps(out["took_s"]))


if __name__ == "__main__":
    main()
