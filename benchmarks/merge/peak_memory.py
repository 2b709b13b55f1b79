"""Peak memory of a merge, ours and PEFT's own, on a Llama of 0.7 B parameters in 6 shards.

    python benchmarks/merge/peak_memory.py [--folder SCRATCH]

Each step runs in a process of its own, started by a small one (a child begins with its parent's
peak); the figure is the peak resident memory (getrusage).
Needs 5 GB of disk. The last line is a JSON document.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build(folder: Path) -> tuple[Path, Path]:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    base, adapter = folder / "base", folder / "adapter"
    if adapter.is_dir():
        return base, adapter
    config = LlamaConfig(
        vocab_size=32000, hidden_size=1536, intermediate_size=4096, num_hidden_layers=22,
        num_attention_heads=16, num_key_value_heads=16, tie_word_embeddings=False,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config)
    model.save_pretrained(base, max_shard_size="260MB")
    tuned = get_peft_model(
        model,
        LoraConfig(r=16, lora_alpha=32, target_modules=LINEAR, rank_pattern={"q_proj": 8},
                   alpha_pattern={"v_proj": 64}, use_rslora=True),
    )  # fmt: skip
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter.data, std=0.01)
    tuned.save_pretrained(adapter)
    return base, adapter


def run_ours(base: Path, adapter: Path, out: Path) -> None:
    from loracle.jobs.merge.merge import merge

    merge(adapter, base, out)


def run_peft(base: Path, adapter: Path, out: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(
        out, max_shard_size="260MB"
    )


def measure(which: str, base: Path, adapter: Path, out: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--run", which, "--folder", str(base.parent)]
    done = subprocess.run([*command, "--out", str(out)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def differing(left: Path, right: Path) -> tuple[int, int]:
    from safetensors import safe_open

    names: dict[str, Path] = {}
    for path in left.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names |= dict.fromkeys(file.keys(), path)
    elements = different = 0
    for path in right.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                with safe_open(names[name], "pt") as other:
                    a, b = file.get_tensor(name), other.get_tensor(name)
                elements += a.numel()
                different += int((a.view(dtype=b.dtype) != b).sum())
    return elements, different


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--run", choices=("build", "ours", "peft", "imports"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.run:
        start = time.monotonic()
        base, adapter = options.folder / "base", options.folder / "adapter"
        if options.run == "imports":
            import torch  # noqa: F401
        elif options.run == "build":
            build(options.folder)
        else:
            {"ours": run_ours, "peft": run_peft}[options.run](base, adapter, options.out)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"peak_bytes": peak, "seconds": time.monotonic() - start}))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        base, adapter = folder / "base", folder / "adapter"
        measure("build", base, adapter, folder / "none")
        shards = [path.stat().st_size for path in base.glob("*.safetensors")]
        found = {
            which: measure(which, base, adapter, folder / which)
            for which in ("imports", "ours", "peft")
        }
        elements, different = differing(folder / "ours", folder / "peft")
    report = {
        "shards": len(shards), "largest_shard_bytes": max(shards), "model_bytes": sum(shards),
        "bound_bytes": max(shards) + 500_000_000, "elements": elements, "different": different,
        **found,
    }  # fmt: skip
    print(
        f"{len(shards)} shards, largest {max(shards) / 1e6:.0f} MB, all {sum(shards) / 1e6:.0f} MB"
    )
    for which, row in found.items():
        print(f"{which:8} peak {row['peak_bytes'] / 1e6:6.0f} MB  {row['seconds']:5.1f} s")
    print(f"{different} of {elements:,} elements differ")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
