"""GGUF through llama.cpp's own converter, where it is on this machine."""

import shutil
import subprocess
import sys
from pathlib import Path

from loracle.errors import MachineError, RunError

_NAMES = ("convert_hf_to_gguf.py", "convert-hf-to-gguf.py")


def export_gguf(folder: Path, converter: Path | None = None) -> Path:
    """`MODEL.gguf` in 16 bits beside the merged folder; written under another name first.

    Raises MachineError E056 without a converter, RunError E071 where it fails.
    """
    script = converter or find_converter()
    if script is None or not script.is_file():
        raise MachineError("error.merge.no_converter", code="E056", hint="hint.merge.converter")
    out = folder.with_suffix(".gguf")
    unfinished = out.with_name(f".{out.name}.writing")
    command = [sys.executable, str(script), str(folder), "--outfile", str(unfinished)]
    done = subprocess.run(
        [*command, "--outtype", "auto"], capture_output=True, text=True, check=False
    )
    if done.returncode or not unfinished.is_file():
        unfinished.unlink(missing_ok=True)
        lines = (done.stderr or done.stdout).strip().splitlines()
        cause = lines[-1] if lines else f"exit {done.returncode}"
        raise RunError("error.merge.converter_failed", code="E071", cause=cause)
    unfinished.rename(out)
    return out


def find_converter() -> Path | None:
    """The script on PATH, or in a llama.cpp folder here or at home."""
    for name in _NAMES:
        if found := shutil.which(name):
            return Path(found)
        for folder in (Path.cwd() / "llama.cpp", Path.home() / "llama.cpp"):
            if (folder / name).is_file():
                return folder / name
    return None
