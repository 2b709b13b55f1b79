"""Put every question to a source, in the one order that keeps the answers honest.

NVML first and idle samples before CUDA exists in this process; then the properties, the small
trials, the probes of each card alone, all cards together, and the counters again at the end. A
refusal is noted and the next question asked: a driver that is lost halfway still gives a report.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loracle.jobs.audit.nvml import GETTERS
from loracle.jobs.audit.observation import (
    Card,
    CudaDevice,
    Disk,
    Host,
    HostCopy,
    Idle,
    Kernel,
    Observation,
    Paths,
    Pattern,
    Peer,
    Rates,
    Soak,
    Software,
    Timing,
)  # fmt: skip
from loracle.jobs.audit.source import Refused, Source

SYSTEM_KEYS = ("driver_version", "nvml_version", "cuda_driver_version", "device_count")
AFTER_KEYS = ("ecc_uncorrected", "ecc_corrected", "pcie_replays", "remapped_rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How long, and what to leave out."""

    idle_seconds: float = 10.0
    soak_seconds: float = 180.0
    quick: bool = False
    network: bool = False
    disk_folder: str = "."


Progress = Callable[[str], None]


@dataclass(slots=True)
class _Asker:
    """Asks, and keeps the refusals by the key that was asked."""

    source: Source
    refusals: dict[str, str] = field(default_factory=dict)

    def ask(self, key: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Refused as refusal:
            self.refusals[key] = refusal.reason
            return None


def observe(
    source: Source, options: Options, progress: Progress = lambda stage: None
) -> Observation:
    """Everything that one audit sees, whatever the source refuses."""
    progress("host")
    system = _Asker(source)
    answers = {key: system.ask(key, lambda key=key: source.nvml(key)) for key in SYSTEM_KEYS}
    count = answers["device_count"]
    indices = range(count or 0)
    by_nvml = {index: _nvml_answers(source, index) for index in indices}
    progress("idle")
    machine = _Asker(source)
    idle = machine.ask("idle", lambda: source.probe("idle", seconds=options.idle_seconds)) or {}
    progress("cuda")
    cuda = machine.ask("cuda", lambda: source.probe("cuda")) or {}
    software: Mapping[str, Any] = {}
    if cuda.get("available"):
        progress("software")
        software = machine.ask("software", lambda: source.probe("software")) or {}
    cards = [
        _card(source, index, by_nvml.get(index), idle, cuda, options, progress)
        for index in _indices(indices, cuda)
    ]
    together, soak = _all_at_once(source, machine, cards, options, progress)
    peers = ()
    if len(cards) > 1:
        progress("peers")
        peers = machine.ask("peers", lambda: source.probe("peers")) or {}
    cards = [_finished(source, card, together, soak, machine.refusals) for card in cards]
    progress("host")
    host = _host(source, options)
    meta = machine.ask("run", lambda: source.fact("run")) or {}
    soaked = max((card.soak.seconds[-1] for card in cards if card.soak and card.soak.seconds),
                 default=0.0)  # fmt: skip
    return Observation(
        cards=tuple(cards),
        num_nvml_devices=count,
        host=host,
        paths=_paths(source),
        software=_software(answers, cuda, software, {**system.refusals, **machine.refusals}),
        peers=_peers(peers),
        xids=tuple((int(at), int(number)) for at, number in soak.get("xids", ())),
        nvml_refusal=system.refusals.get("device_count"),
        started_at=str(meta.get("started_at", "")),
        seconds=float(meta.get("seconds", 0.0)),
        soaked_seconds=soaked,
    )


def _indices(by_nvml: range, cuda: Mapping[str, Any]) -> list[int]:
    """The cards to audit: those that CUDA shows, matched to NVML; all of NVML's without CUDA."""
    shown = [int(one["index"]) for one in cuda.get("devices", ())]
    return shown or list(by_nvml)


def _nvml_answers(source: Source, index: int) -> tuple[dict[str, Any], dict[str, str]]:
    asker = _Asker(source)
    answers = {}
    for key in GETTERS:
        if key in SYSTEM_KEYS:
            continue
        value = asker.ask(key, lambda key=key: source.nvml(key, index))
        if key not in asker.refusals:
            answers[key] = value
    return answers, asker.refusals


def _card(
    source: Source,
    index: int,
    by_nvml: tuple[dict[str, Any], dict[str, str]] | None,
    idle: Mapping[str, Any],
    cuda: Mapping[str, Any],
    options: Options,
    progress: Progress,
) -> Card:
    """One card alone, by every path and probe."""
    answers, refusals = by_nvml or ({}, {})
    asker = _Asker(source, dict(refusals))
    samples = (idle.get("devices") or {}).get(str(index))
    device = next((one for one in cuda.get("devices", ()) if int(one["index"]) == index), None)
    bus = _bus_id(answers, device)
    information = asker.ask(
        "information", lambda: source.read(f"/proc/driver/nvidia/gpus/{bus}/information")
    )
    folder = f"/sys/bus/pci/devices/{bus}"
    card = Card(
        index=index,
        nvml=answers,
        cuda=_cuda_device(device),
        proc_model=_line(information, "Model"),
        proc_uuid_hash=_line(information, "GPU UUID"),
        sys_device_id=_hex(asker.ask("sys_device", lambda: source.read(f"{folder}/device"))),
        sys_vendor_id=_hex(asker.ask("sys_vendor", lambda: source.read(f"{folder}/vendor"))),
        idle=_columns(Idle, samples),
        processes_before=answers.get("num_processes"),
        refusals=asker.refusals,
    )
    if device is None:
        asker.refusals.setdefault("cuda", "NotFound")
        return card
    return _probed(source, card, asker, options, progress)


def _probed(
    source: Source, card: Card, asker: _Asker, options: Options, progress: Progress
) -> Card:
    def ask(name: str, key: str | None = None, **given: Any) -> Any:
        progress(name)
        return asker.ask(key or name, lambda: source.probe(name, card.index, **given))

    kernel = ask("kernel")
    context = (kernel or {}).get("context_bytes")
    seen: dict[str, Any] = {"kernel": _kernel(kernel), "context_bytes": context}
    if kernel is not None and not kernel.get("runs"):
        return _with(card, seen, asker)
    seen["timing"] = _timing(ask("timing"))
    capability = card.cuda.compute_capability if card.cuda else None
    dtype = "bfloat16" if (capability or (8, 0)) >= (8, 0) else "float16"
    if (capability or (8, 0)) < (7, 0) and capability != (6, 0):
        dtype = "float32"  # Pascal without fp16 units
    seen["gemm"] = _rates(ask("gemm", dtype=dtype))
    if dtype == "bfloat16":
        seen["fp16"] = _rates(ask("gemm", "fp16", dtype="float16"))
    seen["fp32"] = _rates(ask("gemm", "fp32", dtype="float32"))
    seen["fp64"] = _rates(ask("gemm", "fp64", dtype="float64"))
    seen["bandwidth"] = _rates(ask("bandwidth"))
    seen["copies"] = _copies(ask("copies"))
    seen["pattern"] = _pattern(ask("pattern"))
    return _with(card, seen, asker)


def _with(card: Card, seen: Mapping[str, Any], asker: _Asker) -> Card:
    from dataclasses import replace

    return replace(card, **seen, refusals=asker.refusals)


def _all_at_once(
    source: Source, machine: _Asker, cards: Sequence[Card], options: Options, progress: Progress
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """All cards side by side: the same burst, then the soak."""
    if not any(card.gemm for card in cards):
        return {}, {}
    together: Mapping[str, Any] = {}
    if len(cards) > 1:
        progress("together")
        together = machine.ask("together", lambda: source.probe("together")) or {}
    progress("soak")
    soak = machine.ask("soak", lambda: source.probe("soak", seconds=options.soak_seconds)) or {}
    return together, soak


def _finished(
    source: Source,
    card: Card,
    together: Mapping[str, Any],
    soak: Mapping[str, Any],
    machine_refusals: Mapping[str, str],
) -> Card:
    """The card with what was seen all at once, and its counters read again."""
    asker = _Asker(source, dict(card.refusals))
    for key in ("idle", "soak", "together"):
        if key in machine_refusals:
            asker.refusals.setdefault(key, machine_refusals[key])
    if soak.get("xids_refused"):
        asker.refusals.setdefault("xids", str(soak["xids_refused"]))
    after = asker.ask("after", lambda: source.probe("after", card.index)) or {}
    rates = (together.get("devices") or {}).get(str(card.index))
    columns = (soak.get("devices") or {}).get(str(card.index))
    seen = {
        "together": _rates(rates),
        "soak": _columns(Soak, columns),
        "after": after,
        "nvlinks": after.get("nvlinks"),
    }
    return _with(card, seen, asker)


# from plain answers to observations


def _cuda_device(device: Mapping[str, Any] | None) -> CudaDevice | None:
    if device is None:
        return None
    capability = device.get("compute_capability")
    pair = tuple(int(part) for part in str(capability).split(".")) if capability else None
    return CudaDevice(
        name=device.get("name"),
        num_sms=device.get("num_sms"),
        compute_capability=pair,
        total_bytes=device.get("total_bytes"),
        l2_bytes=device.get("l2_bytes"),
        bus_id=device.get("bus_id"),
        uuid_hash=device.get("uuid_hash"),
    )


def _bus_id(answers: Mapping[str, Any], device: Mapping[str, Any] | None) -> str:
    by_nvml = (answers.get("pci") or {}).get("bus_id") if answers.get("pci") else None
    text = by_nvml or (device or {}).get("bus_id") or ""
    return re.sub(r"^0000(?=[0-9a-f]{4}:)", "", text.lower())


def _line(information: str | None, name: str) -> str | None:
    match = re.search(rf"^{name}:\s*(.+?)\s*$", information or "", re.MULTILINE)
    return match[1] if match else None


def _hex(text: str | None) -> str | None:
    return text.strip().removeprefix("0x").upper() if text else None


def _columns(kind: type, columns: Mapping[str, Any] | None) -> Any:
    if not columns:
        return None
    plain = {
        key: tuple(value) if isinstance(value, list | tuple) else value
        for key, value in columns.items()
    }
    return kind(**plain)


def _rates(answer: Mapping[str, Any] | None) -> Rates | None:
    if not answer or not answer.get("repeats"):
        return None
    return Rates(
        repeats=tuple(float(one) for one in answer["repeats"]),
        dtype=str(answer.get("dtype", "")),
        size=answer.get("size"),
        mismatches=answer.get("mismatches"),
        alone=answer.get("alone"),
    )


def _timing(answer: Mapping[str, Any] | None) -> Timing | None:
    if not answer:
        return None
    return Timing(
        durations_us=tuple(float(one) for one in answer["durations_us"]),
        gaps_ms=tuple(float(one) for one in answer.get("gaps_ms", ())),
        sm_mhz=answer.get("sm_mhz"),
        max_sm_mhz=answer.get("max_sm_mhz"),
        events=int(answer.get("events") or 0),
    )


def _kernel(answer: Mapping[str, Any] | None) -> Kernel | None:
    if answer is None:
        return None
    return Kernel(
        runs=bool(answer.get("runs")),
        error=str(answer.get("error") or ""),
        dtypes=answer.get("dtypes") or {},
    )


def _copies(answer: Mapping[str, Any] | None) -> HostCopy | None:
    if not answer:
        return None
    return HostCopy(
        to_device=_rates(answer.get("to_device")),
        to_host=_rates(answer.get("to_host")),
        generation=answer.get("generation"),
        lanes=answer.get("lanes"),
    )


def _pattern(answer: Mapping[str, Any] | None) -> Pattern | None:
    return Pattern(**answer) if answer else None


def _peers(answer: Any) -> tuple[Peer, ...]:
    pairs = answer.get("pairs", ()) if isinstance(answer, Mapping) else ()
    return tuple(Peer(**pair) for pair in pairs)


def _host(source: Source, options: Options) -> Host:
    asker = _Asker(source)
    facts = asker.ask("host", lambda: source.fact("host")) or {}
    disks = asker.ask("disks", lambda: source.fact("disks")) or ()
    disk = asker.ask("disk", lambda: source.probe("disk", folder=options.disk_folder)) or {}
    network = {}
    if options.network:
        network = asker.ask("network", lambda: source.probe("network")) or {}
    return Host(
        **facts,
        disks=tuple(Disk(**one) for one in disks),
        disk_read_bytes_per_s=disk.get("read_bytes_per_s"),
        disk_write_bytes_per_s=disk.get("write_bytes_per_s"),
        download_bytes_per_s=network.get("bytes_per_s"),
        download_from=network.get("endpoint"),
        refusals=asker.refusals,
    )


def _paths(source: Source) -> Paths:
    asker = _Asker(source)
    facts = asker.ask("paths", lambda: source.fact("paths")) or {}
    mounts = asker.ask("mounts", lambda: source.fact("mounts")) or ()
    version = asker.ask(
        "/proc/driver/nvidia/version", lambda: source.read("/proc/driver/nvidia/version")
    )
    match = re.search(r"(?:Kernel Module|Module)[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s", version or "")
    return Paths(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()},
        mounts=tuple(mounts),
        kernel_driver=match[1] if match else None,
        refusals=asker.refusals,
    )


def _software(
    answers: Mapping[str, Any],
    cuda: Mapping[str, Any],
    trials: Mapping[str, Any],
    refusals: Mapping[str, str],
) -> Software:
    number = answers.get("cuda_driver_version")
    return Software(
        python=cuda.get("python"),
        driver=answers.get("driver_version"),
        driver_cuda=f"{number // 1000}.{number % 1000 // 10}" if number else None,
        torch=cuda.get("torch"),
        torch_cuda=cuda.get("torch_cuda"),
        arch_list=tuple(cuda.get("arch_list") or ()),
        cuda_available=cuda.get("available"),
        cuda_error=str(cuda.get("error") or ""),
        bitsandbytes=trials.get("bitsandbytes"),
        flash_attn=trials.get("flash_attn"),
        flash_sdpa=trials.get("flash_sdpa"),
        packages=cuda.get("packages") or {},
        refusals=refusals,
    )
