"""Real trials of optional libraries, in a process of their own: a crash there is an answer.

Run as a module it prints a line of JSON for each: a 4-bit product against the 16-bit one, torch's
flash kernel against its plain one, and whether flash-attn can be imported.
"""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from typing import Any

from loracle.jobs.audit.source import Refused

_SECONDS = 90


def software() -> dict[str, Any]:
    """The trials' outcomes; a crash or a hang of a library is told as its error."""
    outcome: dict[str, Any] = {}
    while missing := [name for name in TRIALS if name not in outcome]:
        outcome |= _child(missing)
    return outcome


def _child(names: list[str]) -> dict[str, Any]:
    """What one child says of the trials it gets through; the one it dies in has failed."""
    command = [sys.executable, "-m", "loracle.jobs.audit.probes.software", *names]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_SECONDS
        )
        said, last = done.stdout, (done.stderr.strip().split("\n") or [""])[-1][:200]
        last = last or f"ended with {done.returncode}"
    except subprocess.TimeoutExpired as expired:
        said = expired.stdout.decode() if isinstance(expired.stdout, bytes) else ""
        last = f"no answer in {_SECONDS} s"
    except OSError as error:
        raise Refused("Failed", "no child process") from error
    found: dict[str, Any] = {}
    for line in said.split("\n"):
        if line.startswith('{"trial"'):
            document = json.loads(line)
            found[document["trial"]] = document["outcome"]
    if dead := [name for name in names if name not in found]:
        found[dead[0]] = _failed(dead[0], last)
    return found


def _failed(name: str, error: str) -> dict[str, Any]:
    package = "flash-attn" if name == "flash_attn" else name
    return {"installed": True, "version": _version(package), "runs": False, "error": error}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def try_bitsandbytes(device: str = "cuda:0") -> dict[str, Any]:
    """Relative error (Frobenius) of an NF4 product against the 16-bit product.

    Normally distributed weights in NF4 with blocks of 64 come out about 9 % off; a broken kernel
    is off by a multiple of that.
    """
    version = _version("bitsandbytes")
    if version is None:
        return {"installed": False}
    import bitsandbytes
    import torch
    from bitsandbytes.functional import quantize_4bit

    major, _ = torch.cuda.get_device_capability() if device.startswith("cuda") else (8, 0)
    kind = torch.bfloat16 if major >= 8 else torch.float16
    torch.manual_seed(1)
    weight = torch.randn(1024, 2048, device=device, dtype=kind) / 45
    given = torch.randn(64, 2048, device=device, dtype=kind)
    packed, state = quantize_4bit(weight, blocksize=64, quant_type="nf4")
    found = bitsandbytes.matmul_4bit(given, packed.t(), quant_state=state).float()
    wanted = (given.float() @ weight.float().t()).float()
    error = float((found - wanted).norm() / wanted.norm())
    return {"installed": True, "version": version, "relative_error": error}


def try_flash_sdpa(device: str = "cuda:0") -> dict[str, Any]:
    """Whether torch's own flash kernel runs, and agrees with the plain one."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as attend

    torch.manual_seed(1)
    query, key, value = (
        torch.randn(1, 8, 512, 64, device=device, dtype=torch.bfloat16) for _ in range(3)
    )
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = attend(query, key, value, is_causal=True)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = attend(query, key, value, is_causal=True)
    error = float((found.float() - wanted.float()).abs().max())
    return {"runs": error < 0.05, "largest_error": error}


def try_flash_attn() -> dict[str, Any]:
    """Whether the flash-attn package, if it is there, can be imported with this torch."""
    if importlib.util.find_spec("flash_attn") is None:
        return {"installed": False}
    import flash_attn

    return {"installed": True, "version": flash_attn.__version__, "error": ""}


TRIALS = {
    "flash_sdpa": try_flash_sdpa,
    "bitsandbytes": try_bitsandbytes,
    "flash_attn": try_flash_attn,
}


def main(names: list[str]) -> None:
    """Some trials, one line of JSON each, told as soon as they are through."""
    for name in names:
        sys.stdout.write(json.dumps({"trial": name, "outcome": TRIALS[name]()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
