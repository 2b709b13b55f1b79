"""Writing a result file: whole or not at all."""

import os
from pathlib import Path

from loracle.errors import InputError


def write_whole(path: str, text: str) -> None:
    """Write through a neighbour and rename. Raises InputError E013 where that is not possible."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(
            "error.unwritable", code="E013", path=path, reason=error.strerror or str(error)
        ) from error
