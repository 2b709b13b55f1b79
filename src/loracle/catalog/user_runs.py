"""Measured runs of the user's own machines, kept where `loracle bench` writes them."""

from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from loracle.domain.measured import MeasuredRun


def user_runs_file() -> Path:
    """`measured.jsonl` in the user's data folder; it may not exist yet."""
    return Path(platformdirs.user_data_path("loracle")) / "measured.jsonl"


def user_runs(path: Path | None = None) -> "tuple[MeasuredRun, ...]":
    """The user's own runs, oldest first; none where nothing was benched.

    Raises InputError E018 for a file that is not a list of measured runs.
    """
    file = path or user_runs_file()
    if not file.is_file():
        return ()
    from loracle.catalog.measured import read_runs  # most plans have no runs to read

    return read_runs(file)
