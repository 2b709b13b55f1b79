"""`loracle offers refresh`: today's prices by the hour, from many clouds, kept with their date."""

import typer

from loracle import words
from loracle.cli.output import Output


def refresh(
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """Fetch live prices; the last snapshot stays where that fails."""
    from loracle.catalog.prices_gpuhunt import refresh as fetch
    from loracle.cli.today import today

    output = Output("json" if as_json else "quiet" if quiet else "human")
    done = fetch(today())
    if output.mode == "json":
        output.json(
            {
                "schema": "loracle.refreshed/1",
                "path": str(done.path),
                "num_offers": done.num_offers,
                "providers": done.providers,
                "unknown_gpus": done.unknown_gpus,
            }
        )
        return
    output.line(
        output.text(
            "offers.refreshed",
            count=done.num_offers,
            providers=", ".join(done.providers),
            path=str(done.path),
        )
    )
    if done.unknown_gpus:
        output.hint("offers.unknown_gpus", names=", ".join(done.unknown_gpus[:8]))
