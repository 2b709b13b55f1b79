"""`loracle recipe`: the schema of recipes, and what a recipe comes to with its defaults."""

import typer

from loracle import words
from loracle.cli.output import Column, Output

app = typer.Typer(help=words.text("help.recipe"), no_args_is_help=True)


@app.command(help=words.text("help.recipe_app.schema"))
def schema() -> None:
    """Print the JSON Schema of a recipe."""
    from loracle.domain.recipe_schema import recipe_schema

    Output("json").json(recipe_schema())


@app.command(help=words.text("help.recipe_app.show"))
def show(
    file: str = typer.Argument(..., help=words.text("help.recipe_app.file")),
    assignments: list[str] = typer.Option(  # noqa: B008
        [],
        "--set",
        metavar="KEY=VALUE",
        help=words.text("help.recipe_app.set"),  # noqa: B008
    ),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    layout: str = typer.Option("human", "--format", help=words.text("help.format")),
) -> None:
    """Print every key of a recipe, its value and where it came from."""
    import json

    from loracle.cli.recipe_file import overrides_of, read_recipe_file
    from loracle.domain.recipe_keys import known_keys

    output = Output("json" if as_json else layout)
    parsed = read_recipe_file(file, overrides_of(assignments))
    plain = parsed.recipe.model_dump(mode="json")
    rows = []
    for key in known_keys():
        value: object = plain
        for part in key.split("."):
            value = value[part]  # type: ignore[index]
        name, line = parsed.origins.get(key, (None, None))
        rows.append({"key": key, "value": value, "file": name if line else None, "line": line,
                     "origin": "file" if line else "flag" if name else "default"})  # fmt: skip
    if output.mode == "json":
        output.json({"schema": "loracle.recipe/1", "recipe": plain, "keys": rows})
        return
    origins = {
        "file": lambda row: output.text("recipe.from_line", name=row["file"], line=row["line"]),
        "flag": lambda row: output.text("recipe.from_flag"),
        "default": lambda row: output.text("recipe.from_default"),
    }
    output.table(
        [Column(output.text(f"column.{name}")) for name in ("key", "value", "origin")],
        [
            (row["key"], json.dumps(row["value"], ensure_ascii=False), origins[row["origin"]](row))
            for row in rows
        ],
        dim=[index for index, row in enumerate(rows) if row["origin"] == "default"],
    )
