"""Disk and network rates: small, bounded, and nothing left behind."""

import mmap
import os
import time
import uuid
from pathlib import Path

from loracle.jobs.audit.source import Refused
from loracle.units import GIB, MIB

_BLOCK = 8 * MIB
_SECONDS = 8.0
# a public model's weights; only the first part is read and thrown away
_FILE = "/openai-community/gpt2/resolve/main/model.safetensors"


def disk(folder: str, size: int = 1 * GIB) -> dict[str, float]:
    """Sequential write and read rates in a folder, past the page cache where that is possible."""
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    size = int(min(size, 0.05 * free)) // _BLOCK * _BLOCK
    if size < 4 * _BLOCK:
        raise Refused("Failed", "too little space for a disk test")
    path = Path(folder) / f".loracle-probe-{uuid.uuid4().hex[:8]}"
    try:
        written = _write(path, size)
        return {"write_bytes_per_s": written, "read_bytes_per_s": _read(path)}
    except OSError as error:
        raise Refused("Failed", error.strerror or "disk") from error
    finally:
        path.unlink(missing_ok=True)


def _open(path: Path, flags: int) -> int:
    """Open past the page cache; file systems without that option get an ordinary file."""
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        return os.open(path, flags, 0o600)


def _write(path: Path, size: int) -> float:
    handle = _open(path, os.O_WRONLY | os.O_CREAT)
    with mmap.mmap(-1, _BLOCK) as block:
        block.write(os.urandom(_BLOCK))
        start, done = time.perf_counter(), 0
        try:
            while done < size and time.perf_counter() - start < _SECONDS:
                done += os.write(handle, block)
            os.fsync(handle)
        finally:
            os.close(handle)
    return done / (time.perf_counter() - start)


def _read(path: Path) -> float:
    handle = _open(path, os.O_RDONLY)
    with mmap.mmap(-1, _BLOCK) as block:
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            start, done = time.perf_counter(), 0
            while time.perf_counter() - start < _SECONDS:
                count = os.readv(handle, [block])
                if count == 0:
                    break
                done += count
        finally:
            os.close(handle)
    return done / max(time.perf_counter() - start, 1e-9)


def network(most: int = 200 * MIB, seconds: float = 10.0) -> dict[str, object]:
    """Download rate from the model hub that this machine is set to use (HF_ENDPOINT)."""
    from urllib.error import URLError
    from urllib.parse import urlparse
    from urllib.request import urlopen

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not endpoint.startswith("https://"):
        raise Refused("Failed", "HF_ENDPOINT is not https")
    try:
        with urlopen(endpoint + _FILE, timeout=seconds) as response:
            response.read(_BLOCK)  # the start-up is not the rate
            start, done = time.perf_counter(), 0
            while done < most and time.perf_counter() - start < seconds:
                block = response.read(MIB)
                if not block:
                    break
                done += len(block)
            elapsed = time.perf_counter() - start
    except (URLError, OSError) as error:
        raise Refused("NotFound", "no way to the hub") from error
    name = urlparse(endpoint).hostname or ""
    public = name if name in ("huggingface.co", "hf-mirror.com", "modelscope.cn") else "own mirror"
    return {"bytes_per_s": done / max(elapsed, 1e-9), "endpoint": public}
