"""The cards: what each is, what it can really do, and where every value comes from.

Data lives in `data/gpus.json`; a user's own cards in `gpus/*.yaml` of the config folder, in the
same words (see `card_file.py`), and win over a shipped card with the same id. A name that no card
answers to is an error, never a guess: a wrong card is a wrong answer about money.
"""

import json
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

from loracle.catalog.folders import config_folder, read_yaml
from loracle.catalog.names import card_words
from loracle.domain.gpu import Gpu, MigProfile, Sourced
from loracle.errors import CatalogError
from loracle.units import GIB, MIB

DATA = Path(__file__).parent / "data" / "gpus.json"


def load_gpus(*, user_folder: Path | None = None) -> tuple[Gpu, ...]:
    """Every known card, shipped ones first, in the order of the data file.

    `user_folder` is the folder of the user's own cards; by default `gpus` in the config folder.
    Raises CatalogError E035 for a user's file that is not a card.
    """
    own = _user_cards(user_folder or config_folder() / "gpus")
    replaced = {gpu.id for gpu in own}
    return tuple(gpu for gpu in _shipped_cards() if gpu.id not in replaced) + own


def find_gpu(name: str, *, user_folder: Path | None = None) -> Gpu:
    """The card that a name means: an id, an alias, or any spelling with the same words.

    `4090`, `RTX 4090 24GB`, `NVIDIA A100-SXM4-80GB` find one card. Raises CatalogError E031 for
    a name that fits several cards (`A100`) or none, with the nearest names and how to add one.
    """
    gpus = load_gpus(user_folder=user_folder)
    words = card_words(name)
    exact = [gpu for gpu in gpus if words and words in _spellings(gpu)]
    if exact:
        return exact[-1]
    partial = [gpu for gpu in gpus if words and words <= frozenset().union(*_spellings(gpu))]
    if len(partial) == 1:
        return partial[0]
    if partial:
        raise CatalogError(
            "error.catalog.ambiguous_gpu",
            code="E031",
            hint="hint.catalog.ambiguous_gpu",
            name=name,
            names=", ".join(gpu.name for gpu in partial[:6]),
            example=partial[0].id,
        )
    raise _unknown(name, words, gpus)


def _unknown(name: str, words: frozenset[str], gpus: Sequence[Gpu]) -> CatalogError:
    names = _nearest_cards(words, gpus)
    hints = (["hint.catalog.nearest"] if names else []) + ["hint.catalog.add_gpu"]
    return CatalogError(
        "error.catalog.unknown_gpu",
        code="E031",
        hints=hints,
        name=name,
        names=", ".join(names),
        folder=str(config_folder() / "gpus"),
    )


def _nearest_cards(words: frozenset[str], gpus: Sequence[Gpu], *, limit: int = 4) -> list[str]:
    wanted = " ".join(sorted(words))
    likeness = {
        gpu.name: max(
            SequenceMatcher(None, wanted, " ".join(sorted(spelling))).ratio()
            for spelling in _spellings(gpu)
        )
        for gpu in gpus
    }
    near = sorted((name for name in likeness if likeness[name] > 0.6), key=lambda n: -likeness[n])
    return near[:limit]


def _spellings(gpu: Gpu) -> frozenset[frozenset[str]]:
    return _all_words((gpu.id, gpu.name, *gpu.aliases))


@cache
def _all_words(spellings: tuple[str, ...]) -> frozenset[frozenset[str]]:
    return frozenset(card_words(spelling) for spelling in spellings)


@cache
def _shipped_cards() -> tuple[Gpu, ...]:
    document = json.loads(DATA.read_text("utf-8"))
    sources = {
        key: Sourced(entry["source"], entry["date"], entry["measured"])
        for key, entry in document["sources"].items()
    }
    return tuple(gpu_from_row(row, sources) for row in document["cards"])


def _user_cards(folder: Path) -> tuple[Gpu, ...]:
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml"), *folder.glob("*.json")])
    if not paths:
        return ()
    from loracle.catalog.card_file import read_card

    cards = (read_card(read_yaml(path), path) for path in paths)
    return tuple(gpu_from_row(row, sources) for row, sources in cards)


def gpu_from_row(row: Mapping[str, Any], sources: Mapping[str, Sourced]) -> Gpu:
    """A card from one row of the data file, whose sourced values are [value, source key].

    Text units become base units here: MiB, GiB, GB/s and TFLOP/s in the file.
    """
    births: dict[str, Sourced] = {}

    def take(field: str, cell: Sequence[Any], unit: float = 1) -> float:
        births[field] = sources[cell[1]]
        return float(cell[0]) * unit

    def rates(field: str, cells: Mapping[str, Sequence[Any]]) -> dict[str, float]:
        return {dtype: take(f"{field}.{dtype}", cell, 1e12) for dtype, cell in cells.items()}

    def optional(field: str, key: str, unit: float = 1) -> float | None:
        return take(field, row[key], unit) if key in row else None

    for field in ("compute_capability", "pcie_generation", "pcie_lanes"):
        births[field] = sources[row["facts_source"]]
    major, minor = row["compute_capability"].split(".")
    num_sms = optional("num_sms", "num_sms")
    driver = sources.get(row.get("driver_source", ""))
    if driver is not None:
        births["min_driver"] = births["min_cuda"] = driver
    if "mig_source" in row:
        births["mig_profiles"] = sources[row["mig_source"]]
    pcie = row.get("pcie", {})
    return Gpu(
        id=row["id"],
        name=row["name"],
        aliases=tuple(row.get("aliases", ())),
        memory_bytes=round(take("memory_bytes", row["memory_mib"], MIB)),
        usable_bytes=round(take("usable_bytes", row["usable_gib"], GIB)),
        context_bytes=round(take("context_bytes", row["context_mib"], MIB)),
        bandwidth_bytes_per_s=take("bandwidth_bytes_per_s", row["bandwidth_gb_per_s"], 1e9),
        peak_flops_per_s=rates("peak_flops_per_s", row["peak_tflops"]),
        gemm_flops_per_s=rates("gemm_flops_per_s", row["gemm_tflops"]),
        compute_capability=(int(major), int(minor)),
        num_sms=None if num_sms is None else round(num_sms),
        tdp_watts=optional("tdp_watts", "tdp_watts"),
        pcie_generation=pcie.get("generation"),
        pcie_lanes=pcie.get("lanes"),
        nvlink_bytes_per_s=optional("nvlink_bytes_per_s", "nvlink_gb_per_s", 1e9),
        mig_profiles=tuple(
            MigProfile(
                name=profile["name"],
                memory_bytes=round(profile["memory_gib"] * GIB),
                sm_fraction=profile["sm_fraction"],
            )
            for profile in row.get("mig_profiles", ())
        ),
        min_driver=row.get("min_driver"),
        min_cuda=row.get("min_cuda"),
        notes=row.get("notes", ""),
        sources=births,
    )
