"""Two model hubs, asked for the small files only: config and tokenizer, never weights.

Hugging Face goes through its own client, so HF_ENDPOINT (mirrors), HF_HOME, HF_TOKEN and
HF_HUB_OFFLINE mean here what they mean everywhere. ModelScope needs one plain request per file
(MODELSCOPE_DOMAIN and MODELSCOPE_API_TOKEN are honoured). Whatever goes wrong on the way is one
CatalogError, because the person who plans needs the next step and not the stack.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loracle.catalog.folders import cache_folder, write_whole
from loracle.errors import CatalogError, MissingExtra

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_TIMEOUT_SECONDS = 15
_LARGEST_FILE_BYTES = 64 * 2**20  # a tokenizer.json of 256k entries is about 35 MiB


def hub_config(model_id: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """Path of a Hub model's config.json, from the cache or downloaded into it.

    Raises CatalogError E032 where the hub has no such model, revision or config, E036 where it
    cannot be asked, and MissingExtra where huggingface_hub is not installed.
    """
    return _hub_file(model_id, "config.json", revision, offline)


def hub_tokenizer(model_id: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """Folder with whichever tokenizer files a Hub model has; errors as `hub_config`."""
    folder: Path | None = None
    for name in TOKENIZER_FILES:
        try:
            folder = _hub_file(model_id, name, revision, offline).parent
        except CatalogError as error:
            if error.message != "error.hub.no_file":
                raise
    if folder is None:
        raise _no_file(model_id, "tokenizer.json")
    return folder


def _hub_file(model_id: str, name: str, revision: str | None, offline: bool) -> Path:
    try:
        from httpx import HTTPError
        from huggingface_hub import errors as hub
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
    except ImportError as error:
        raise MissingExtra("hub", "huggingface_hub") from error
    offline = offline or _offline_by_env()
    try:
        if not offline and not isinstance(
            try_to_load_from_cache(model_id, name, revision=revision), str
        ):
            _ask_once(model_id, name, revision)
        return Path(hf_hub_download(model_id, name, revision=revision, local_files_only=offline))
    except hub.GatedRepoError as error:
        raise CatalogError(
            "error.hub.gated", code="E036", hint="hint.hub.gated", model=model_id
        ) from error
    except (hub.RepositoryNotFoundError, hub.RevisionNotFoundError) as error:
        raise CatalogError(
            "error.hub.no_model", code="E032", hint="hint.hub.no_model",
            model=model_id, revision=revision or "main",
        ) from error  # fmt: skip
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled) as error:
        raise _unreachable(model_id, "Hugging Face", offline=offline) from error
    except hub.EntryNotFoundError as error:
        raise _no_file(model_id, name) from error
    except hub.HFValidationError as error:
        raise CatalogError(
            "error.hub.bad_id", code="E032", hint="hint.hub.no_model", model=model_id
        ) from error
    except (HTTPError, OSError) as error:
        raise _unreachable(model_id, "Hugging Face", reason=_one_line(error)) from error


def _ask_once(model_id: str, name: str, revision: str | None) -> None:
    """One request without retries: the client itself tries for 23 s where there is no network."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    get_hf_file_metadata(hf_hub_url(model_id, name, revision=revision), timeout=_TIMEOUT_SECONDS)


def modelscope_config(model_id: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """Path of a ModelScope model's config.json; errors as `hub_config`."""
    return _modelscope_file(model_id, "config.json", revision, offline)


def modelscope_tokenizer(
    model_id: str, *, revision: str | None = None, offline: bool = False
) -> Path:
    """Folder with whichever tokenizer files a ModelScope model has; errors as `hub_config`."""
    found = False
    for name in TOKENIZER_FILES:
        try:
            path = _modelscope_file(model_id, name, revision, offline)
            found = True
        except CatalogError as error:
            if error.code == "E036" and not (offline and found):
                raise
    if not found:
        raise _no_file(model_id, "tokenizer.json")
    return path.parent


def _modelscope_file(model_id: str, name: str, revision: str | None, offline: bool) -> Path:
    if model_id.count("/") != 1 or not all(model_id.split("/")):
        raise CatalogError(
            "error.hub.bad_id", code="E032", hint="hint.hub.no_model", model=model_id
        )
    kept = cache_folder() / "modelscope" / model_id / (revision or "master") / name
    if kept.is_file():
        return kept
    if offline:
        raise _unreachable(model_id, "ModelScope", offline=True)
    write_whole(kept, _modelscope_download(model_id, name, revision or "master"))
    return kept


def _modelscope_download(model_id: str, name: str, revision: str) -> bytes:
    import urllib.error
    import urllib.parse
    import urllib.request

    domain = os.environ.get("MODELSCOPE_DOMAIN", "www.modelscope.cn")
    base = domain if "://" in domain else f"https://{domain}"
    query = urllib.parse.urlencode({"Revision": revision, "FilePath": name})
    request = urllib.request.Request(
        f"{base.rstrip('/')}/api/v1/models/{urllib.parse.quote(model_id)}/repo?{query}",
        headers={"User-Agent": "loracle"},
    )
    if token := os.environ.get("MODELSCOPE_API_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            content: bytes = answer.read(_LARGEST_FILE_BYTES)
            return content
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise CatalogError(
                "error.hub.gated", code="E036", hint="hint.hub.gated_modelscope", model=model_id
            ) from error
        if error.code == 404 and name == "config.json":
            raise CatalogError(
                "error.hub.no_model", code="E032", hint="hint.hub.no_model",
                model=model_id, revision=revision,
            ) from error  # fmt: skip
        if error.code == 404:
            raise _no_file(model_id, name) from error
        raise _unreachable(model_id, "ModelScope", reason=_one_line(error)) from error
    except OSError as error:  # URLError, timeouts and broken connections are all OSErrors
        raise _unreachable(model_id, "ModelScope", reason=_one_line(error)) from error


def read_config(path: Path) -> Mapping[str, Any]:
    """The object in a config.json.

    Raises CatalogError E035 where the file cannot be read, is not UTF-8, not JSON or no object.
    """
    try:
        config = json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise _bad_config(path, error.strerror or "", 0) from error
    except UnicodeDecodeError as error:
        raise _bad_config(path, "not UTF-8", 0) from error
    except json.JSONDecodeError as error:
        raise _bad_config(path, error.msg, error.lineno) from error
    except RecursionError as error:
        raise _bad_config(path, "nested too deeply", 0) from error
    if not isinstance(config, dict):
        raise _bad_config(path, "not a JSON object", 1)
    return config


def _bad_config(path: Path, reason: str, line: int) -> CatalogError:
    return CatalogError("error.catalog.file", code="E035", path=str(path), line=line, reason=reason)


def _no_file(model_id: str, name: str) -> CatalogError:
    return CatalogError(
        "error.hub.no_file", code="E032", hint="hint.hub.no_file", model=model_id, file=name
    )


def _unreachable(
    model_id: str, hub: str, *, reason: str = "", offline: bool = False
) -> CatalogError:
    return CatalogError(
        "error.hub.offline" if offline else "error.hub.unreachable",
        code="E036",
        hint="hint.hub.offline" if offline else "hint.hub.unreachable",
        model=model_id,
        hub=hub,
        reason=reason,
    )


def _offline_by_env() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (text or type(error).__name__)[:160]
