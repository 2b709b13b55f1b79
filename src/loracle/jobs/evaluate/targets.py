"""From what the user names (a run, an adapter, a model folder) to the subjects of an evaluation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from loracle.errors import InputError, LoracleError, RunError
from loracle.jobs.evaluate.subjects import Subject
from loracle.jobs.merge.adapter import check_adapter
from loracle.jobs.merge.base import find_base
from loracle.jobs.merge.merge import RECORD
from loracle.jobs.merge.quantised import Nf4

if TYPE_CHECKING:
    from loracle.domain.recipe import Recipe
    from loracle.jobs.runs import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One trained thing: its base, its adapter or its full model, how training held the base.

    `run` is None for a bare adapter or model folder. `quant` is None, nf4, nf4-double or int8.
    """

    name: str
    base: str
    adapter: Path | None
    model: Path | None
    quant: str | None
    dtype: str
    run: "RunFolder | None" = None
    recipe: "Recipe | None" = None
    tokenizer: str = ""

    @property
    def nf4(self) -> Nf4 | None:
        """Settings that a merge onto the dequantised base needs."""
        if self.quant not in ("nf4", "nf4-double"):
            return None
        return Nf4(double=self.quant == "nf4-double")

    def merged_folders(self) -> list[Path]:
        """Merged models inside the run folder, whole ones only."""
        if self.run is None:
            return []
        return sorted(one.parent for one in self.run.path.glob(f"*/{RECORD}"))


def find_target(
    text: str, *, base: str | None = None, quant: str | None = None, parent: Path = Path("runs")
) -> Target:
    """A run by path or name, an adapter folder, or a model folder.

    Raises:
        InputError: E013, nothing of that name.
        RunError: E061, E076 to E079, a run without result, a broken adapter, another base than the
            run's.
    """
    from loracle.jobs.runs import RunFolder, open_run

    path = Path(text).expanduser()
    if (path / "adapter_config.json").is_file() and not RunFolder(path).facts.is_file():
        return _adapter_target(path, base, quant)
    if (path / "config.json").is_file():
        return Target(
            name=path.name, base=base or str(path), adapter=None, model=path, quant=None,
            dtype=_dtype_of(path), tokenizer=str(path),
        )  # fmt: skip
    return _run_target(open_run(text, parent), base, quant)


def subjects_of(target: Target, *, dtype: str, merged: list[Path]) -> list[Subject]:
    """Base, adapter (or the tuned model) and merged models of one target."""
    base = Subject(id="base", weights=target.base, quant=target.quant, dtype=dtype)
    found = [base]
    if target.adapter is not None:
        found.append(replace(base, id="adapter", adapter=target.adapter))
    elif target.model is not None and str(target.model) != target.base:
        found.append(Subject(id="tuned", weights=str(target.model), dtype=dtype))
    found += [Subject(id=merged_id(folder), weights=str(folder), dtype=dtype) for folder in merged]
    return found


def merged_id(folder: Path) -> str:
    """`merged-base16`, `merged-dequantised`, by the folder's record; `merged` without one."""
    try:
        onto = json.loads((folder / RECORD).read_text("utf-8"))["onto"]
    except (OSError, ValueError, KeyError):
        return "merged"
    return f"merged-{onto}"


def check_base(target: Target, folder: Path) -> None:
    """The base's fingerprint against the run's; raises RunError E079 where they differ."""
    from loracle.jobs.train.facts import fingerprint_model

    if target.run is None:
        return
    facts = target.run.read_facts().get("model")
    expected = facts.get("hash") if isinstance(facts, Mapping) else None
    if expected is None:
        return
    found = fingerprint_model(folder)
    if found != expected:
        raise RunError(
            "error.merge.other_base", code="E079", hint="hint.merge.base", base=str(folder),
            found=found[:12], expected=str(expected)[:12],
        )  # fmt: skip


def _run_target(run: "RunFolder", base: str | None, quant: str | None) -> Target:
    from loracle.domain.recipe_text import parse_recipe

    facts = run.read_facts()
    recipe = parse_recipe(_recipe_text(run), str(run.recipe))
    model = facts.get("model")
    source = str(model.get("source")) if isinstance(model, Mapping) else recipe.model
    adapter = run.adapter if (run.adapter / "adapter_config.json").is_file() else None
    full = run.model if (run.model / "config.json").is_file() else None
    if adapter is None and full is None:
        raise RunError(
            "error.merge.not_finished", code="E076", hint="hint.merge.not_finished",
            path=str(run.path), state=run.state(), name=run.name,
        )  # fmt: skip
    if adapter is not None:
        check_adapter(adapter)
    setup = facts.get("setup")
    dtype = str(setup.get("base_dtype", "bfloat16")) if isinstance(setup, Mapping) else "bfloat16"
    stored = quant_name(facts.get("quant"))
    tokenizer = next(
        (str(one) for one in (adapter, full) if one and (one / "tokenizer_config.json").is_file()),
        source,
    )
    return Target(
        name=run.name, base=base or source, adapter=adapter, model=full, quant=quant or stored,
        dtype=dtype, run=run, recipe=recipe, tokenizer=tokenizer,
    )  # fmt: skip


def _recipe_text(run: "RunFolder") -> str:
    try:
        return run.recipe.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(
            "error.train.broken_file", code="E061", path=str(run.recipe), cause=str(error)
        ) from error


def quant_name(facts: object) -> str | None:
    """nf4, nf4-double, int8 or None, from a run's facts."""
    if not isinstance(facts, Mapping):
        return None
    if facts.get("type") == "int8":
        return "int8"
    return "nf4-double" if facts.get("double") else "nf4"


def _adapter_target(path: Path, base: str | None, quant: str | None) -> Target:
    config, _ = check_adapter(path)
    reference = base or str(config.get("base_model_name_or_path") or "")
    if not reference:
        raise InputError(
            "error.evaluate.no_base", code="E013", hint="hint.merge.base", path=str(path)
        )
    try:
        folder = str(find_base(reference))
    except LoracleError:
        if base is not None:
            raise
        folder = reference  # named by a hub id: loading will say what is wrong
    has_tokenizer = (path / "tokenizer_config.json").is_file()
    return Target(
        name=path.name, base=folder, adapter=path, model=None, quant=quant,
        dtype=_dtype_of(Path(folder)), tokenizer=str(path) if has_tokenizer else folder,
    )  # fmt: skip


def _dtype_of(folder: Path) -> str:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return "bfloat16"
    return str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
