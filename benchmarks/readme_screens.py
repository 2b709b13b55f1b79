"""Run the README's `console` blocks again, and put their real output in.

    python benchmarks/readme_screens.py            say which screens differ
    python benchmarks/readme_screens.py --write    rewrite them

A block starts with `$ loracle ...`. Commands run from the repository's root with the day and the
width below, so that a screen can be printed again; a test compares them.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READMES = {"README.md": "en", "README.zh-CN.md": "zh-CN"}
DAY = "1795996800"  # 2026-11-30 00:00 UTC
BLOCK = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<screen>.*?)```", re.DOTALL)


def screen(command: str, language: str) -> str:
    """What the command prints on stdout, without trailing blanks."""
    words = shlex.split(command)
    environment = os.environ | {
        "SOURCE_DATE_EPOCH": DAY, "COLUMNS": "110", "NO_COLOR": "1", "LORACLE_LANG": language,
        "XDG_CONFIG_HOME": "/nonexistent", "XDG_DATA_HOME": "/nonexistent",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, check=False,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if not done.stdout:
        raise SystemExit(f"{command} printed nothing: {done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines()) + "\n"


def blocks(path: Path) -> list[tuple[str, str]]:
    """(command, screen) of every console block."""
    text = path.read_text("utf-8")
    return [(one["command"], one["screen"]) for one in BLOCK.finditer(text)]


def main() -> None:
    """Compare, or rewrite with --write."""
    for name, language in READMES.items():
        path = ROOT / name
        text = path.read_text("utf-8")

        def anew(found: re.Match[str], language: str = language) -> str:
            command = found["command"]
            return f"```console\n$ {command}\n{screen(command, language)}```"

        fresh = BLOCK.sub(anew, text)
        if fresh != text:
            print(f"{name}: screens differ")
            if "--write" in sys.argv:
                path.write_text(fresh, "utf-8")


if __name__ == "__main__":
    main()
