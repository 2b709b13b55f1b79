"""`loracle data`: what training would make of a file."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.output import Output

if TYPE_CHECKING:
    from loracle.catalog.datasets import DataCount, DataReport


def run(
    file: str = typer.Argument(..., help=words.text("help.data_file.file")),
    model: str = typer.Option(None, "--model", "-m", help=words.text("help.data_file.model")),
    seq_len: int = typer.Option(
        2048, "--seq-len", "--max-seq-length", min=1, help=words.text("help.data_file.seq_len")
    ),
    rows: str = typer.Option("auto", "--rows", help=words.text("help.data_file.rows")),
    skip_bad: bool = typer.Option(False, "--skip-bad", help=words.text("help.data_file.skip_bad")),
    repair: bool = typer.Option(False, "--repair", help=words.text("help.data_file.repair")),
    encoding: str = typer.Option(None, "--encoding", help=words.text("help.data_file.encoding")),
    no_packing: bool = typer.Option(
        False, "--no-packing", help=words.text("help.data_file.no_packing")
    ),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    form: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """Read a data set and say what is in it; exit 2 where rows are bad."""
    from loracle.catalog.datasets import (
        count_data,
        count_large,
        find_counter,
        is_large,
        read_dataset,
        sample_large,
    )

    output = Output("json" if as_json else "quiet" if quiet else form)
    counter = find_counter(model, vocab_size=_vocab_size(model))
    how = {"seq_len": seq_len, "packing": not no_packing}
    if is_large(file) and not repair and encoding is None:
        sample = sample_large(file, format=rows, skip_bad=skip_bad)
        counted = count_large(sample, counter, **how)  # type: ignore[arg-type]
    else:
        data = read_dataset(file, format=rows, skip_bad=skip_bad, repair=repair, encoding=encoding)
        counted = count_data(data, counter, **how)  # type: ignore[arg-type]
    if output.mode == "json":
        output.json(_document(counted, seq_len))
    elif output.mode == "quiet":
        facts = counted.facts
        output.line(
            output.text(
                "data.quiet",
                samples=facts.num_samples,
                tokens=round(facts.tokens.likely),
                bad=facts.bad_rows,
            )
        )
    else:
        _show(output, counted, seq_len)


def _vocab_size(model: str | None) -> int | None:
    """The vocabulary of a model that the catalog knows without the network; None else."""
    from loracle.errors import LoracleError

    if model is None:
        return None
    try:
        from loracle.catalog.models import find_model

        return find_model(model, offline=True).vocab_size
    except (ImportError, LoracleError):
        return None  # the tokenizer may still be at hand; else the range is wider


def _show(output: Output, counted: "DataCount", seq_len: int) -> None:
    from loracle.units import count

    facts, report = counted.facts, counted.report
    files = ", ".join(Path(name).name for name in report.files[:3])
    output.line(
        output.text(
            "data.title",
            files=files + (", ..." if len(report.files) > 3 else ""),
            samples=f"{facts.num_samples:,}",
            format=facts.format,
            encoding=report.encoding,
        )
    )
    how = "tokens_exact" if facts.counted_by == "tokenizer" else "tokens_characters"
    if counted.read_share < 1:
        share, rows = f"{counted.read_share:.1%}", f"{counted.report.num_rows:,}"
        output.warning("data.large", share=share, rows=rows)
    if facts.counted_by == "tokenizer" and counted.counted_rows < facts.num_samples:
        how = "tokens_sampled"
    output.line(
        output.text(
            f"data.{how}",
            tokens=count(facts.tokens.likely),
            low=count(facts.tokens.low),
            high=count(facts.tokens.high),
            counted=f"{counted.counted_rows:,}",
        )
    )
    lengths = {f"p{key}": f"{value:,.0f}" for key, value in facts.length_percentiles.items()}
    output.line(output.text("data.lengths", **lengths))
    _show_cut(output, counted, seq_len)
    if facts.packed_sequences is not None:
        gain = facts.num_samples / facts.packed_sequences
        output.line(
            output.text(
                "data.packing",
                sequences=f"{facts.packed_sequences:,}",
                seq_len=seq_len,
                fill=f"{counted.packed_fill:.0%}",
                gain=f"{gain:.1f}",
            )
        )
    output.line(output.text("data.padding", share=f"{facts.padding_share:.0%}"))
    _show_rows(output, report)


def _show_cut(output: Output, counted: "DataCount", seq_len: int) -> None:
    from loracle.units import count

    if not counted.facts.cut_share:
        output.line(output.text("data.no_cut", seq_len=seq_len))
        return
    share = f"{counted.facts.cut_share:.1%}"
    tokens = count(counted.cut_tokens)
    output.line(output.text("data.cut", share=share, seq_len=seq_len, tokens=tokens))
    if counted.unlabelled_rows:
        output.warning("data.unlabelled", rows=counted.unlabelled_rows)


def _show_rows(output: Output, report: "DataReport") -> None:
    from loracle.catalog.datasets.reader import row_problem

    if report.num_bad:
        output.line(output.text("data.bad", bad=report.num_bad, rows=report.num_rows))
        first = {one.reason: one for one in reversed(report.problems)}
        for reason, number in report.bad.items():
            problem = row_problem(first[reason]) if reason in first else None
            sentence = output.text(problem.message, **problem.values) if problem else reason
            output.line(output.text("data.bad_reason", count=number, reason=sentence))
    if report.repaired:
        what = ", ".join(f"{number} × {name}" for name, number in report.repaired.items())
        output.line(output.text("data.repaired", what=what))
    if report.unused_keys:
        output.line(output.text("data.unused", keys=", ".join(report.unused_keys)))


def _document(counted: "DataCount", seq_len: int) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "schema": "loracle.data/1",
        "seq_len": seq_len,
        "facts": asdict(counted.facts),
        "counted_rows": counted.counted_rows,
        "unlabelled_rows": counted.unlabelled_rows,
        "cut_tokens": counted.cut_tokens,
        "packed_fill": counted.packed_fill,
        "read_share": counted.read_share,
        "report": asdict(counted.report),
    }
