"""Fingerprints of cards: load the table, and find the card behind an id, a name or an offer.

The table is `data/fingerprints.toml`. It is apart from the planner's card catalog because it
answers another question: not how fast a card will train, but what shows that it is that card.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from loracle.domain.audit import Fingerprint
from loracle.errors import CatalogError

_MIB = 2**20
_FILE = Path(__file__).parent / "data" / "fingerprints.toml"
_PART_WORDS = re.compile(
    r"\bmig\b|\b\d+g\.\d+gb\b|\bslice\b|\bvgpu\b|\bshared?\b|\b1/\d+\b|切片|切分|分片|共享|虚拟",
    re.IGNORECASE,
)
_SIZE = re.compile(
    r"(?<![a-z0-9.])(\d{1,3})\s*(?:g|gb|gib)\b"
    r"(?!\s*(?:ram|mem|disk|ssd|nvme|system|data|内存|硬盘|系统|数据))",
    re.IGNORECASE,
)
_COUNT = re.compile(r"^\s*(\d{1,2})\s*[x×*]\s*", re.IGNORECASE)
_FORMS = frozenset({"sxm", "pcie", "nvl", "rtx", "blackwell", "workstation"})
_NOISE = {"nvidia", "geforce", "tesla", "gpu", "card", "whole", "full", "edition", "generation",
          "整卡", "显卡", "服务器", "server"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SoldAs:
    """What an offer's words claim: cards that answer to them, memory, and whole or a part."""

    text: str
    fingerprints: tuple[Fingerprint, ...]
    memory_gib: int | None = None
    part: bool = False
    num_gpus: int | None = None


@cache
def load_fingerprints() -> tuple[Fingerprint, ...]:
    """Every card of the table, in its order."""
    table = tomllib.loads(_FILE.read_text("utf-8"))
    sources = table["sources"]
    return tuple(_fingerprint(row, sources) for row in table["card"])


@cache
def table_date() -> str:
    """The day (ISO) on which the table was last gone through."""
    return str(tomllib.loads(_FILE.read_text("utf-8"))["date"])


def find_fingerprint(card_id: str) -> Fingerprint:
    """The card with this id; raises CatalogError E038."""
    for one in load_fingerprints():
        if one.id == card_id:
            return one
    raise CatalogError("error.no_fingerprint", code="E038", hint="hint.fingerprint", name=card_id)


def by_device_id(device_id: str | None) -> Fingerprint | None:
    """The card of a PCI device id (`2684`), None where the table has none."""
    wanted = (device_id or "").upper()
    for one in load_fingerprints():
        if wanted in one.device_ids:
            return one
    return None


def by_driver_name(name: str | None, memory_bytes: int | None = None) -> Fingerprint | None:
    """The card of a name as the driver prints it; memory decides between two of one name."""
    bare = re.sub(r"\s+MIG .*$", "", name or "").removeprefix("NVIDIA ").strip().lower()
    same = [
        one
        for one in load_fingerprints()
        if any(bare == known.removeprefix("NVIDIA ").lower() for known in one.driver_names)
    ]
    if len(same) > 1 and memory_bytes:
        same.sort(key=lambda one: min(abs(total - memory_bytes) for total in one.memory_bytes))
    return same[0] if same else None


def sold_as(text: str) -> SoldAs:
    """What an offer such as `A100 40G`, `2x RTX 4090 48GB` or `A100 MIG 1g.5gb` claims.

    Raises CatalogError E038 where no card answers to the words. Several may: `A100 40G` is the
    PCIe and the SXM board.
    """
    count = _COUNT.match(text)
    body = text[count.end() :] if count else text
    part = _PART_WORDS.search(body) is not None
    plain = _PART_WORDS.sub(" ", body)
    sizes = [int(found) for found in _SIZE.findall(plain)]
    wanted = _tokens(_SIZE.sub(" ", plain))
    closest = _closest([one for one in load_fingerprints() if _answers(one, wanted)], wanted)
    closest = closest or _named_in(wanted)
    memory = next((one for one in sizes if any(_has_memory(card, one) for card in closest)), None)
    matched = [one for one in closest if memory is None or _has_memory(one, memory)]
    if sizes and memory is None and not part:
        matched = []  # no such card has that memory
    if not matched:
        raise CatalogError("error.no_fingerprint", code="E038", hint="hint.fingerprint", name=text)
    return SoldAs(
        text=text, fingerprints=tuple(matched), memory_gib=memory, part=part,
        num_gpus=int(count[1]) if count else None,
    )  # fmt: skip


def _tokens(text: str) -> frozenset[str]:
    words = re.findall(r"[a-z]*\d+[a-z]*|[a-z]+|[一-鿿]+", _split_joined(text.lower()))
    return frozenset(words) - _NOISE


def _split_joined(text: str) -> str:
    """`rtx4090d` -> `rtx 4090 d`; `a100`, `h800`, `l40s` and `t4` stay whole."""
    text = re.sub(r"\b(rtx|gtx)[ _-]*(?=[a-z]?\d)", r"\1 ", text)
    text = re.sub(r"\b(\d{4})[ _-]*(ti|super|d|s)\b", r"\1 \2 ", text)
    text = re.sub(r"sxm\d?", " sxm ", text)
    return re.sub(r"pcie?\b", " pcie ", text)


def _name_tokens(one: Fingerprint) -> frozenset[str]:
    return _tokens(_SIZE.sub(" ", one.name))


def _answers(one: Fingerprint, wanted: frozenset[str]) -> bool:
    return bool(wanted) and wanted <= _name_tokens(one) | {"rtx"}


def _closest(named: list[Fingerprint], wanted: frozenset[str]) -> list[Fingerprint]:
    """Of all that hold the words, those with nothing but a form factor more."""
    exact = [one for one in named if not (_name_tokens(one) - wanted - _FORMS)]
    return exact or named


def _named_in(words: frozenset[str]) -> list[Fingerprint]:
    """The cards whose whole name is among the words of a longer offer; the longest names."""
    named = [one for one in load_fingerprints() if _name_tokens(one) - _FORMS <= words]
    longest = max((len(_name_tokens(one) - _FORMS) for one in named), default=0)
    best = [one for one in named if len(_name_tokens(one) - _FORMS) == longest]
    formed = [one for one in best if _name_tokens(one) & words & {"sxm", "pcie", "nvl"}]
    return formed or best


def _has_memory(one: Fingerprint, gib: int) -> bool:
    known = (*one.memory_bytes, *one.modified_bytes)
    return any(abs(total / 2**30 - gib) <= max(1.0, 0.07 * gib) for total in known)


def _fingerprint(row: Mapping[str, object], sources: Mapping[str, str]) -> Fingerprint:
    capability = tuple(int(part) for part in str(row["compute_capability"]).split("."))
    measured = row.get("measured_tflops")
    known = dict(sources)
    known["memory"] = known[str(row["memory_source"])]
    for topic in ("rates", "copy", "l2"):  # a card's own source, where it has one
        if f"{topic}_source" in row:
            known[topic] = known[str(row[f"{topic}_source"])]
    return Fingerprint(
        id=str(row["id"]),
        name=str(row["name"]),
        driver_names=_texts(row["driver_names"]),
        group=str(row["group"]),
        family=str(row["family"]),
        device_ids=_texts(row["device_ids"]),
        num_sms=_int(row["num_sms"]),
        cores_per_sm=_int(row["cores_per_sm"]),
        compute_capability=(capability[0], capability[1]),
        memory_bytes=_sizes(row["memory_mib"]) + _sizes(row.get("older_driver_mib", ())),
        modified_bytes=_sizes(row.get("modified_mib", ())),
        bus_bits=_int(row["bus_bits"]),
        bandwidth_bytes_per_s=_float(row["bandwidth_gb_per_s"]) * 1e9,
        copy_share=_float(row["copy_share"]) if "copy_share" in row else None,
        boost_mhz=_int(row["boost_mhz"]),
        tdp_watts=_float(row["tdp_watts"]),
        pcie_generation=_int(row["pcie_generation"]),
        pcie_lanes=_int(row["pcie_lanes"]),
        dtype=str(row["dtype"]),
        peak_flops_per_s=_float(row["peak_tflops"]) * 1e12 if "peak_tflops" in row else None,
        measured_flops_per_s=_pair(measured, 1e12) if measured is not None else None,
        fp64_flops_per_clock_sm=_int(row["fp64_flops_per_clock_sm"]),
        fp64_tensor_cores=bool(row.get("fp64_tensor_cores", False)),
        l2_bytes=_int(row["l2_mib"]) * _MIB if "l2_mib" in row else None,
        nvlink_links=_int(row.get("nvlink_links", 0)),
        nvlink_bytes_per_s=(
            _float(row["nvlink_gb_per_s"]) * 1e9 if "nvlink_gb_per_s" in row else None
        ),
        gpu_ids=_texts(row["gpus"]) if "gpus" in row else (str(row["id"]),),
        note=str(row.get("note", "")),
        own=_mapping(row.get("own", {})),
        sources=known,
    )


def _texts(value: object) -> tuple[str, ...]:
    assert isinstance(value, Iterable)
    return tuple(str(one) for one in value)


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping)
    return value


def _sizes(value: object) -> tuple[int, ...]:
    assert isinstance(value, Iterable)
    return tuple(int(one) * _MIB for one in value)


def _pair(value: object, factor: float) -> tuple[float, float]:
    assert isinstance(value, Iterable)
    low, high = (float(one) * factor for one in value)
    return low, high


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _float(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
