"""Where a user's own facts live: one place, so that no loader invents its own.

The config folder holds what people wrote (cards, quotes, rates), the cache folder what can be
fetched again (price snapshots). Both follow the platform's convention: XDG on Linux.
"""

import os
from pathlib import Path

import platformdirs

from loracle.errors import CatalogError


def config_folder() -> Path:
    """Cards, offers and rates that the user added; it may not exist yet."""
    return platformdirs.user_config_path("loracle")


def cache_folder() -> Path:
    """Snapshots of live sources; safe to delete."""
    return platformdirs.user_cache_path("loracle")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old text or the new one, never a half.

    Raises CatalogError E035 where the folder or the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        partial.replace(path)
    except OSError as error:
        if partial.is_file():
            partial.unlink()
        raise CatalogError(
            "error.catalog.not_written", code="E035", path=str(path), reason=error.strerror or ""
        ) from error


def read_yaml(path: Path) -> object:
    """The data of a YAML or JSON file that a user wrote.

    Raises CatalogError E035 with the line where it cannot be read, decoded or parsed.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where it is built
    try:
        return yaml.load(path.read_text("utf-8-sig"), Loader=loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or "" if isinstance(error, OSError) else "not UTF-8"
        raise _broken(path, reason, 0) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or "not YAML"
        raise _broken(path, reason, mark.line + 1 if mark else 0) from error


def _broken(path: Path, reason: str, line: int) -> CatalogError:
    return CatalogError("error.catalog.file", code="E035", path=str(path), line=line, reason=reason)
