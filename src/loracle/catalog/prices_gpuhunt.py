"""Live prices by the hour, collected by gpuhunt from many clouds, kept as one dated snapshot.

The network is touched by `refresh` alone. It writes the whole snapshot or leaves the old one as it
was; planning reads the newest file and says how old it is. Spot prices are left out: a machine
that may be taken away at any minute is another product.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from loracle.catalog.folders import cache_folder, write_whole
from loracle.catalog.gpus import find_gpu
from loracle.domain.gpu import Node
from loracle.domain.money import Money
from loracle.domain.offer import Offer, Price
from loracle.errors import CatalogError, MissingExtra
from loracle.units import GB, GIB

SCHEMA = "loracle.prices/1"
_SPELLED = {"RTXPRO6000": "RTX PRO 6000", "H100NVL": "H100 NVL"}  # gpuhunt runs words together
_DEFAULT_FORM = {"H100": "H100 PCIe", "H200": "H200", "V100": "V100 PCIe"}


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh brought: the file, its offers, the clouds heard, and names not known here."""

    path: Path
    num_offers: int
    providers: tuple[str, ...]
    unknown_gpus: tuple[str, ...]


def snapshot_folder() -> Path:
    """Where snapshots live."""
    return cache_folder() / "prices"


def refresh(today: str, *, folder: Path | None = None) -> Refreshed:
    """Ask gpuhunt's published catalogs and write `gpuhunt-<today>.json`.

    Of each cloud, card and number of cards the cheapest on-demand machine is kept. `today` is an
    ISO date. Raises MissingExtra (`prices`), and CatalogError E037 where no catalog can be
    fetched; in both cases the last snapshot stays.
    """
    try:
        import gpuhunt
    except ImportError as error:
        raise MissingExtra("prices", "gpuhunt") from error
    catalog = gpuhunt.Catalog(balance_resources=False, auto_reload=False)
    with _quiet("gpuhunt"):
        try:
            catalog.load()
        except (gpuhunt.GPUHuntError, OSError) as error:
            raise CatalogError(
                "error.prices.unreachable",
                code="E037",
                hint="hint.prices.unreachable",
                reason=_one_line(error.__cause__ or error),
            ) from error
        heard = tuple(sorted(catalog.catalog))
        items = [item for name in heard for item in catalog.catalog[name].items]
    rows, unknown = _cheapest(items)
    if not rows:
        raise CatalogError("error.prices.nothing", code="E037", hint="hint.prices.unreachable")
    document = {"schema": SCHEMA, "date": today, "source": "gpuhunt", "offers": rows}
    path = (folder or snapshot_folder()) / f"gpuhunt-{today}.json"
    write_whole(path, json.dumps(document, indent=1) + "\n")
    return Refreshed(path, len(rows), heard, unknown)


def snapshot_offers(folder: Path | None = None) -> tuple[Offer, ...]:
    """The offers of the newest snapshot; none where there has been no refresh.

    Raises CatalogError E035 for a file that is not a snapshot.
    """
    paths = sorted((folder or snapshot_folder()).glob("gpuhunt-*.json"))
    if not paths:
        return ()
    try:
        document = json.loads(paths[-1].read_text("utf-8"))
        return tuple(_offer(row, document["date"]) for row in document["offers"])
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise CatalogError(
            "error.prices.snapshot",
            code="E035",
            hint="hint.prices.snapshot",
            path=str(paths[-1]),
            reason=_one_line(error),
        ) from error


def _cheapest(items: Iterable[Any]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    best: dict[str, dict[str, Any]] = {}
    unknown: set[str] = set()
    for item in items:
        if item.spot or not item.gpu_count or not item.gpu_name or not item.price > 0:
            continue
        if item.gpu_vendor is not None and item.gpu_vendor.value != "nvidia":
            continue
        gpu_id = _card(item.gpu_name, item.gpu_memory)
        if gpu_id is None:
            unknown.add(f"{item.gpu_name} {item.gpu_memory or 0:g}GB")
            continue
        key = f"{item.provider}-{gpu_id}" + (f"x{item.gpu_count}" if item.gpu_count > 1 else "")
        if key not in best or Decimal(str(item.price)) < Decimal(best[key]["usd_per_hour"]):
            best[key] = _row(key, gpu_id, item)
    return [best[key] for key in sorted(best)], tuple(sorted(unknown))


def _row(key: str, gpu_id: str, item: Any) -> dict[str, Any]:
    return {
        "id": key,
        "provider": item.provider,
        "gpu": gpu_id,
        "num_gpus": item.gpu_count,
        "usd_per_hour": str(Decimal(str(item.price))),
        "num_cores": item.cpu or None,
        "ram_gib": item.memory or None,
        "disk_gb": item.disk_size or None,
        "region": item.location,
        "instance": item.instance_name,
    }


def _card(name: str, memory_gib: float | None) -> str | None:
    spelled = _SPELLED.get(name, name)
    tries = [f"{spelled} {memory_gib:.0f}GB"] if memory_gib else []
    if memory_gib and name in _DEFAULT_FORM:
        tries.append(f"{_DEFAULT_FORM[name]} {memory_gib:.0f}GB")
    for text in (*tries, spelled):
        try:
            gpu = find_gpu(text)
        except CatalogError:
            continue
        if not memory_gib or abs(gpu.memory_bytes / GIB / memory_gib - 1) < 0.1:
            return gpu.id
    return None


def _offer(row: dict[str, Any], date: str) -> Offer:
    price = Money(Decimal(row["usd_per_hour"]), "USD")
    return Offer(
        id=row["id"],
        provider=row["provider"],
        node=Node(
            gpu_id=row["gpu"],
            num_gpus=row["num_gpus"],
            num_cores=row["num_cores"],
            ram_bytes=round(row["ram_gib"] * GIB) if row["ram_gib"] else None,
            disk_bytes=round(row["disk_gb"] * GB) if row["disk_gb"] else None,
        ),
        prices=(Price(term="hour", amount=price, period="hour"),),
        bills_whole_terms=False,
        provenance="listed",
        region=row["region"],
        as_of=date,
        source=f"gpuhunt, {row['instance']}",
    )


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """gpuhunt logs each cloud that fails with a traceback; what matters is said in one line."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _one_line(error: BaseException) -> str:
    error = getattr(error, "reason", None) or error  # what a URLError wraps
    return (" ".join(str(error).split()) or type(error).__name__)[:160]
