"""GGUF through llama.cpp's own converter, where it is on this machine."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from loracle.errors import MachineError, RunError

_NAMES = ("convert_hf_to_gguf.py", "convert-hf-to-gguf.py")
_MODULE = "convert_hf_to_gguf"


def check_export(folder: Path, converter: Path | None = None) -> Path:
    """The converter's script, found before there is anything to convert.

    Raises MachineError E056 without a converter, RunError E068 where the GGUF file exists.
    """
    script = converter or find_converter()
    if script is None or not script.is_file():
        raise MachineError("error.merge.no_converter", code="E056", hint="hint.merge.converter")
    out = gguf_path(folder)
    if out.exists():
        raise RunError("error.merge.exists", code="E068", hint="hint.merge.out", path=str(out))
    return script


def gguf_path(folder: Path) -> Path:
    """`NAME.gguf` beside the merged folder, dots in the name and all."""
    return folder.with_name(f"{folder.name}.gguf")


def export_gguf(folder: Path, converter: Path | None = None) -> Path:
    """The merged folder as GGUF in 16 bits; written under another name first.

    Raises what `check_export` raises, RunError E083 where the converter fails.
    """
    script = check_export(folder, converter)
    out = gguf_path(folder)
    unfinished = out.with_name(f".{out.name}.writing")
    command = [sys.executable, str(script), str(folder), "--outfile", str(unfinished)]
    try:
        done = subprocess.run(
            [*command, "--outtype", "auto"], capture_output=True, text=True, check=False
        )
        if done.returncode or not unfinished.is_file():
            lines = (done.stderr or done.stdout).strip().splitlines()
            cause = lines[-1] if lines else f"exit {done.returncode}"
            raise RunError(
                "error.merge.converter_failed", code="E083", hint="hint.merge.converter_failed",
                cause=cause, path=str(folder),
            )  # fmt: skip
        unfinished.rename(out)
    finally:
        unfinished.unlink(missing_ok=True)
    return out


def find_converter() -> Path | None:
    """The script on PATH, in a llama.cpp folder here or at home, or installed as a package."""
    for name in _NAMES:
        if found := shutil.which(name):
            return Path(found)
        for folder in (Path.cwd() / "llama.cpp", Path.home() / "llama.cpp"):
            if (folder / name).is_file():
                return folder / name
    spec = find_spec(_MODULE)
    return Path(spec.origin) if spec is not None and spec.origin else None
