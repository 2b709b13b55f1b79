"""`loracle merge`: one model folder out of base and adapter."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.output import Output

if TYPE_CHECKING:
    from loracle.jobs.merge.deed import Merged, MergeReport

_help = "merge_flags"


def run(
    target: str = typer.Argument(..., metavar="RUN", help=words.text(f"help.{_help}.run")),
    base: str = typer.Option(None, "--base", help=words.text(f"help.{_help}.base")),
    out: Path = typer.Option(None, "--out", "-o", help=words.text(f"help.{_help}.out")),  # noqa: B008
    onto: str = typer.Option("auto", "--onto", help=words.text(f"help.{_help}.onto")),
    quant: str = typer.Option(None, "--quant", help=words.text(f"help.{_help}.quant")),
    no_verify: bool = typer.Option(
        False, "--no-verify", help=words.text(f"help.{_help}.no_verify")
    ),
    data: str = typer.Option(None, "--data", help=words.text(f"help.{_help}.data")),
    prompts: int = typer.Option(32, "--prompts", min=1, help=words.text(f"help.{_help}.prompts")),
    export: str = typer.Option(None, "--export", help=words.text(f"help.{_help}.export")),
    converter: Path = typer.Option(  # noqa: B008
        None,
        "--converter",
        help=words.text(f"help.{_help}.converter"),  # noqa: B008
    ),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """Merge, verify, and say what was made."""
    from loracle.jobs.evaluate.subjects import require_stack

    require_stack()
    from loracle.errors import InputError
    from loracle.jobs.evaluate.targets import find_target
    from loracle.jobs.merge.deed import merge_target

    output = Output("json" if as_json else "quiet" if quiet else "human")
    for name, value, known in (
        ("--onto", onto, ("auto", "base16", "dequantised", "measure")),
        ("--quant", quant, (None, "nf4", "nf4-double")),
        ("--export", export, (None, "gguf")),
    ):
        if value not in known:
            allowed = ", ".join(one for one in known if one)
            raise InputError("error.merge.flag", code="E011", flag=name, value=value, known=allowed)
    found = find_target(target, base=base, quant=quant)
    report = merge_target(
        found,
        onto=onto,
        out=out,
        data=data,
        num_prompts=prompts,
        verifies=not no_verify,
        export=export,
        converter=converter,
        tell=lambda way: output.note(output.text("merge.merging", onto=way)),
    )
    if output.mode == "json":
        output.json(report.document())
    elif output.mode == "quiet":
        output.line(str(report.kept.result.folder))
    else:
        _show(output, report, was_4_bit=found.quant in ("nf4", "nf4-double"), asked=onto)


def _show(output: Output, report: "MergeReport", *, was_4_bit: bool, asked: str) -> None:
    from loracle.units import gb, gib

    result = report.kept.result
    output.line(output.text("merge.done", onto=result.onto, folder=result.folder))
    output.line(
        output.text(
            "merge.facts",
            tensors=result.num_tensors,
            shards=result.shards,
            size=gb(result.num_bytes, 2),
            changed=result.changed,
            stops=", ".join(str(one) for one in result.stop_ids) or "-",
        )
    )
    if result.unties_embeddings:
        output.line(output.text("merge.untied"))
    if len(report.measured) > 1:
        for one in report.measured:
            _measured(output, one)
        output.line(output.text("merge.kept", onto=result.onto, folder=result.folder))
    elif report.kept.verification is not None:
        _verified(output, report.kept)
    elif report.not_verified is not None:
        need, free = report.not_verified
        reason = output.text("merge.memory", need=gib(need), free=gib(free))
        output.warning("merge.not_verified", reason=reason)
    else:
        output.line(output.text("merge.not_verified", reason=output.text("merge.asked")))
    if report.same_prompts is False:
        output.warning("merge.other_prompts")
    if was_4_bit and asked == "base16":
        output.hint("merge.onto_note")
    if report.gguf is not None:
        output.line(output.text("merge.gguf", path=report.gguf))


def _verified(output: Output, one: "Merged") -> None:
    proof = one.verification
    assert proof is not None
    top1 = f"{proof.fidelity.top1:.2%}"
    kl = f"{proof.fidelity.kl:.2g}"
    output.line(output.text("merge.verified", prompts=proof.prompts, kl=kl, top1=top1))
    losses = {"adapter": f"{proof.adapter_loss:.4f}", "merged": f"{proof.merged_loss:.4f}"}
    output.line(output.text("merge.loss", **losses))


def _measured(output: Output, one: "Merged") -> None:
    proof = one.verification
    if proof is None:
        return
    output.line(
        output.text(
            "merge.measured",
            onto=one.result.onto,
            loss=f"{proof.merged_loss:.4f}",
            kl=f"{proof.fidelity.kl:.2g}",
            top1=f"{proof.fidelity.top1:.2%}",
        )
    )
