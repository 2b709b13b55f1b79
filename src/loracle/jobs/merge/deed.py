"""`loracle merge` as a deed: find base and prompts, merge, verify, choose, export."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loracle.catalog.datasets import Sample, read_dataset
from loracle.errors import LoracleError, RunError
from loracle.jobs.evaluate.prompts import asks_the_same
from loracle.jobs.evaluate.targets import Target, check_base
from loracle.jobs.merge.base import find_base, read_base
from loracle.jobs.merge.gguf import check_export, export_gguf
from loracle.jobs.merge.merge import MergeResult, Progress, check_merge, merge, refuse_existing
from loracle.jobs.merge.verify import (
    Reference,
    Verification,
    memory_shortage,
    reference_of,
    refuse_broken,
    verify,
)

if TYPE_CHECKING:
    from loracle.jobs.merge.quantised import Nf4

PROMPTS = 32
_PLAIN_PROMPTS = (
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "用两句话解释什么是低秩适配。",
    "List three uses of a thermometer.",
    "Translate into French: The weather is nice today.",
    "What is 17 times 23? Show the steps.",
    "Summarise the story of Cinderella in one paragraph.",
    "Give me a recipe for tomato and egg.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One merged folder with its proof; `verification` is None where it was not held against."""

    result: MergeResult
    verification: Verification | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """All that was made: `kept` is what the user should deploy, `measured` each way tried."""

    kept: Merged
    measured: tuple[Merged, ...]
    not_verified: tuple[int, int] | None = None  # bytes needed and free
    same_prompts: bool | None = None  # None where the run kept no hash or its data has moved
    gguf: Path | None = None

    def document(self) -> dict[str, object]:
        """Plain data."""
        return {
            "schema": "loracle.merge-report/1",
            "folder": str(self.kept.result.folder),
            "onto": self.kept.result.onto,
            "result": _plain(self.kept.result),
            "measured": [
                {
                    "onto": one.result.onto,
                    "verification": None
                    if one.verification is None
                    else asdict(one.verification) | {"top1": one.verification.fidelity.top1},
                }
                for one in self.measured
            ],
            "same_prompts": self.same_prompts,
            "gguf": None if self.gguf is None else str(self.gguf),
        }


def merge_target(
    target: Target,
    *,
    onto: str = "auto",
    out: Path | None = None,
    data: str | None = None,
    num_prompts: int = PROMPTS,
    verifies: bool = True,
    export: str | None = None,
    converter: Path | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda onto: None,
) -> MergeReport:
    """Merge a run's or a bare adapter; `onto` is auto, base16, dequantised, or measure (both).

    `auto` is the base that the adapter was trained on: the dequantised one for QLoRA on NF4, where
    the 16-bit original has lost answers (benchmarks/evaluate/README.md), else the 16-bit one.

    Verification loads the model twice, one after the other; where memory is short it is left out
    and the report says so. `measure` keeps the merged model whose loss on the prompts is lower.

    Raises what `merge` raises, and RunError E079 for another base than the run's, E082 for a
    merge that is not the adapter any more.
    """
    if target.adapter is None:
        raise RunError("error.merge.full", code="E065")
    if (
        onto not in ("auto", "base16")
        and target.nf4 is None
        and (target.run is not None or target.quant)
    ):
        raise RunError(
            "error.merge.not_4_bit", code="E065", hint="hint.merge.plain", name=target.name,
            held=target.quant or target.dtype,
        )  # fmt: skip
    if onto == "auto":
        onto = "base16" if target.nf4 is None else "dequantised"
    base = find_base(target.base)
    check_base(target, base)
    ways = ("base16", "dequantised") if onto == "measure" else (onto,)
    folders = {
        way: out if out is not None and len(ways) == 1 else _folder(target, out, way)
        for way in ways
    }
    for folder in folders.values():
        check_merge(target.adapter, base, folder)
        if export == "gguf":
            check_export(folder, converter)
    if out is not None:
        refuse_existing(out)
    shortage = _shortage(base, target) if verifies or len(ways) > 1 else None
    reference = None
    if (verifies or len(ways) > 1) and shortage is None:
        reference = _reference(target, base, data, num_prompts)
    made = []
    for way in ways:
        tell(way)
        made.append(_make(target, base, folders[way], way, target.nf4, reference, progress))
    kept = min(made, key=_merged_loss)
    if len(made) > 1 and out is not None:
        kept = _moved(kept, out)
    gguf = None
    if export == "gguf":
        gguf = export_gguf(kept.result.folder, converter)
    return MergeReport(
        kept=kept,
        measured=tuple(made),
        not_verified=shortage,
        same_prompts=asks_the_same(target, str(kept.result.folder)),
        gguf=gguf,
    )


def _make(
    target: Target,
    base: Path,
    folder: Path,
    way: str,
    nf4: "Nf4 | None",
    reference: Reference | None,
    progress: Progress | None,
) -> Merged:
    assert target.adapter is not None
    proofs: list[Verification] = []

    def prove(written: Path) -> dict[str, object]:
        assert reference is not None
        found = verify(written, reference)
        if target.quant is None or way == "dequantised":  # else the base itself is another one
            refuse_broken(folder, found)
        proofs.append(found)
        return {"verified": asdict(found)}

    result = merge(
        target.adapter,
        base,
        folder,
        onto=way,
        nf4=nf4,
        tokenizer_folder=Path(target.tokenizer) if Path(target.tokenizer).is_dir() else None,
        facts={"name": target.name, "base": target.base},
        progress=progress,
        prove=prove if reference is not None else None,
    )
    return Merged(result=result, verification=proofs[0] if proofs else None)


def _reference(target: Target, base: Path, data: str | None, num_prompts: int) -> Reference:
    assert target.adapter is not None
    return reference_of(
        str(base),
        target.adapter,
        quant=target.quant,
        dtype=target.dtype,
        tokenizer=target.tokenizer or str(base),
        samples=_prompts(target, data, num_prompts),
    )


def _prompts(target: Target, data: str | None, number: int) -> Sequence[Sample]:
    """Rows to compare on: given ones, the run's held-out or training set, else general ones."""
    recipe = target.recipe
    for source in (data, recipe and recipe.data.eval, recipe and recipe.data.train):
        if source is None:
            continue
        try:
            return read_dataset(source, skip_bad=True).samples[:number]
        except LoracleError:
            if source == data:
                raise  # what the user named must be there; a run's own data may have moved
    return [Sample(kind="text", row=row, text=text) for row, text in enumerate(_PLAIN_PROMPTS, 1)]


def _shortage(base: Path, target: Target) -> tuple[int, int] | None:
    return memory_shortage(read_base(base).num_bytes, target.dtype)


def _folder(target: Target, out: Path | None, way: str) -> Path:
    """Beside the adapter in the run, or next to `out` while two ways are tried."""
    if out is not None:
        return out.with_name(f"{out.name}-{way}")
    parent = target.run.path if target.run is not None else Path.cwd()
    name = "merged" if target.run is not None else f"{target.name}-merged"
    return parent / f"{name}-{way}"


def _moved(kept: Merged, out: Path) -> Merged:
    from dataclasses import replace

    if out.is_dir():
        out.rmdir()  # empty, or the merge would have been refused
    kept.result.folder.rename(out)
    return replace(kept, result=replace(kept.result, folder=out))


def _merged_loss(one: Merged) -> float:
    return one.verification.merged_loss if one.verification is not None else 0.0


def _plain(result: MergeResult) -> dict[str, object]:
    return asdict(result) | {"folder": str(result.folder)}
