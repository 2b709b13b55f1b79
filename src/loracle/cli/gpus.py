"""`loracle gpus`: the card table, and one card with the birth certificate of every value."""

from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.narrow import narrow_table
from loracle.cli.output import Column, Output

if TYPE_CHECKING:
    from loracle.domain.gpu import Gpu, Sourced

_SCHEMA = "loracle.gpu-list/1"


def run(
    name: str = typer.Argument(None, help=words.text("help.catalog.gpu_name")),
    text: str = typer.Option(None, "--filter", help=words.text("help.catalog.filter")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    form: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """List the cards, or print one with its sources."""
    from loracle.catalog.gpus import find_gpu, load_gpus

    output = Output("json" if as_json else "quiet" if quiet else form)
    if name is not None:
        _one(output, find_gpu(name))
        return
    wanted = (text or "").lower()
    gpus = [gpu for gpu in load_gpus() if wanted in f"{gpu.id} {gpu.name}".lower()]
    if output.mode == "json":
        output.json({"schema": _SCHEMA, "gpus": [_document(gpu) for gpu in gpus]})
    elif output.mode == "quiet":
        for gpu in gpus:
            output.line(gpu.id)
    else:
        _table(output, gpus)


def _one(output: Output, gpu: "Gpu") -> None:
    if output.mode == "json":
        output.json({"schema": _SCHEMA, "gpus": [_document(gpu)]})
    elif output.mode == "quiet":
        output.line(gpu.id)
    else:
        _card(output, gpu)


def _document(gpu: "Gpu") -> dict[str, object]:
    from dataclasses import asdict

    plain = asdict(gpu)
    plain["compute_capability"] = ".".join(str(part) for part in gpu.compute_capability)
    plain["training_dtype"] = gpu.training_dtype
    plain["supports_flash_attention"] = gpu.supports_flash_attention
    return plain


def _table(output: Output, gpus: "list[Gpu]") -> None:
    if not gpus:
        output.note(output.text("gpus.none"))
        return
    headings = ("card", "id", "usable", "matrix", "dtype", "bandwidth", "watts")
    rows = [
        [
            gpu.name.split(" (")[0],
            gpu.id,
            f"{gpu.usable_bytes / 2**30:.1f}",
            f"{_mark(gpu)}{gpu.gemm_flops_per_s[gpu.training_dtype] / 1e12:,.1f}",
            gpu.training_dtype,
            f"{gpu.bandwidth_bytes_per_s / 1e9:,.0f}",
            f"{gpu.tdp_watts:.0f}" if gpu.tdp_watts else "",
        ]
        for gpu in gpus
    ]
    numbers = ("usable", "matrix", "bandwidth", "watts")
    narrow_table(
        output,
        [Column(output.text(f"gpus.{one}"), right=one in numbers) for one in headings],
        rows,
        least_needed=[headings.index(one) for one in ("watts", "dtype", "card")],
    )
    output.note(output.text("gpus.legend"))


def _mark(gpu: "Gpu") -> str:
    """`~` before a rate that nobody measured on this card."""
    birth = gpu.sources.get(f"gemm_flops_per_s.{gpu.training_dtype}")
    return "" if birth is None or birth.measured else "~"


def _card(output: Output, gpu: "Gpu") -> None:
    output.line(f"{gpu.name}   {gpu.id}")
    if gpu.aliases:
        output.line(output.text("gpus.also", names=", ".join(gpu.aliases)))
    output.line()
    entries = _values(gpu)
    births = dict.fromkeys(gpu.sources[field] for _, _, field in entries if field in gpu.sources)
    numbers = {birth: index for index, birth in enumerate(births, start=1)}
    headings = ("what", "heading_value", "date", "source")
    output.table(
        [Column(output.text(f"gpus.{one}"), right=one == "heading_value") for one in headings],
        [_row(output, gpu, numbers, *entry) for entry in entries],
    )
    if gpu.mig_profiles:
        output.line()
        output.line(output.text("gpus.mig"))
        output.table(
            [
                Column(output.text("gpus.profile")),
                Column(output.text("gpus.usable"), right=True),
                Column(output.text("gpus.share"), right=True),
            ],
            [
                [one.name, f"{one.memory_bytes / 2**30:.1f}", f"{one.sm_fraction:.0%}"]
                for one in gpu.mig_profiles
            ],
        )
    if gpu.notes:
        output.line()
        output.line(gpu.notes)
    output.line()
    for birth, number in numbers.items():
        output.line(f"[{number}] {birth.source}")


def _values(gpu: "Gpu") -> list[tuple[str, str, str]]:
    """(message id, value as text, field whose source counts)."""
    from loracle.units import gib

    rows = [
        ("memory", gib(gpu.memory_bytes, 2), "memory_bytes"),
        ("usable_of", gib(gpu.usable_bytes, 2), "usable_bytes"),
        ("context", gib(gpu.context_bytes, 2), "context_bytes"),
        ("bandwidth_of", f"{gpu.bandwidth_bytes_per_s / 1e9:,.0f} GB/s", "bandwidth_bytes_per_s"),
    ]
    for key, rates in (("peak", gpu.peak_flops_per_s), ("gemm", gpu.gemm_flops_per_s)):
        rows += [
            (f"{key}.{dtype}", f"{rate / 1e12:,.1f} TFLOP/s", f"{key}_flops_per_s.{dtype}")
            for dtype, rate in rates.items()
        ]
    capability = ".".join(str(part) for part in gpu.compute_capability)
    rows.append(("capability", capability, "compute_capability"))
    if gpu.num_sms:
        rows.append(("sms", str(gpu.num_sms), "num_sms"))
    if gpu.tdp_watts:
        rows.append(("tdp", f"{gpu.tdp_watts:.0f} W", "tdp_watts"))
    if gpu.pcie_generation:
        rows.append(("pcie", f"{gpu.pcie_generation}.0 x{gpu.pcie_lanes}", "pcie_generation"))
    if gpu.nvlink_bytes_per_s:
        rows.append(("nvlink", f"{gpu.nvlink_bytes_per_s / 1e9:,.1f} GB/s", "nvlink_bytes_per_s"))
    if gpu.min_driver:
        rows.append(("driver", f"{gpu.min_driver} (CUDA {gpu.min_cuda})", "min_driver"))
    return rows


def _row(
    output: Output, gpu: "Gpu", numbers: "dict[Sourced, int]", key: str, value: str, field: str
) -> list[str]:
    kind, _, dtype = key.partition(".")
    label = output.text(f"gpus.value.{kind}", dtype=dtype)
    birth = gpu.sources.get(field)
    if birth is None:
        return [label, value, "", ""]
    measured = output.text("gpus.measured") if birth.measured else ""
    return [label, value, birth.date, f"[{numbers[birth]}] {measured}".rstrip()]
