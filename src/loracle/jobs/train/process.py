"""The training process: from a run folder to a trained adapter, or to a checkpoint to go on from.

    python -m loracle.jobs.train RUN_FOLDER [--resume]

Everything the process learns goes into the run folder; whoever started it may be gone. Under a
distributed launcher every process runs this file and the first one writes.
"""

import os
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loracle.domain.recipe_text import read_recipe
from loracle.errors import LoracleError, MachineError, RunError
from loracle.jobs.runs import (
    RunFolder,
    append_event,
    process_start,
    write_json,
    write_status,
)
from loracle.jobs.train import checkpoints, facts
from loracle.jobs.train.failure import report_failure
from loracle.jobs.train.options import Options
from loracle.jobs.train.outcome import Outcome
from loracle.jobs.train.world import from_main, is_main, local_rank, world_size

if TYPE_CHECKING:
    from loracle.jobs.train.settle import Settled

EXIT_CODES = {"finished": 0, "stopped": 0, "adapted": 75, "failed": 1}


def main(arguments: list[str]) -> int:
    """Run, report every end in the run folder, and start again after an adaptation."""
    run = RunFolder(Path(arguments[0]).resolve())
    prepare_environment()
    try:
        outcome = train_run(run, resume="--resume" in arguments)
    except LoracleError as error:
        report_failure(run, error)
        return error.exit_code
    if outcome.state == "adapted":
        # A fresh process: after an out of memory the old one's allocator is in pieces.
        command = [sys.executable, "-m", "loracle.jobs.train", str(run.path), "--resume"]
        os.execv(sys.executable, command)
    return EXIT_CODES[outcome.state]


def prepare_environment() -> None:
    """One visible card unless a launcher deals them out; no tokenizer threads under workers."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "WORLD_SIZE" not in os.environ:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]


def train_run(run: RunFolder, *, resume: bool) -> Outcome:
    """Train what the folder describes. Raises errors of the tree; other faults are bugs."""
    if is_main():
        write_status(
            run, state="starting", pid=os.getpid(), host=os.uname().nodename,
            process_start=process_start(os.getpid()), reason="", error=None,
        )  # fmt: skip
        run.stop_request.unlink(missing_ok=True)
        checkpoints.clear_unfinished(run.checkpoints)
    try:
        return _Training(run, resume=resume).run_it()
    except LoracleError:
        raise
    except Exception as error:
        traceback.print_exc()
        from loracle.jobs.train import faults, relief

        if faults.is_out_of_memory(error):  # outside of the steps, which have their own answer
            raise MachineError(
                "error.train.oom", code="E055", hints=relief.ADVICE, run=run.name,
                step=run.status().get("step", 0), phase="start",
            ) from error  # fmt: skip
        raise RunError(
            "error.train.unexpected", code="E069", hint="hint.train.log", log=str(run.log),
            cause=f"{type(error).__name__}: {error}".splitlines()[0],
        ) from error  # fmt: skip


class _Training:
    """One start of a run, from reading the folder to its end."""

    def __init__(self, run: RunFolder, *, resume: bool) -> None:
        self.run = run
        self.resume = resume
        self.recipe = read_recipe(run.recipe.read_bytes(), str(run.recipe)).recipe
        self.known = run.read_facts() if run.facts.is_file() else {}
        self.options = Options.of(self.known.get("options") or {})  # type: ignore[arg-type]
        self.status = run.status()

    def run_it(self) -> Outcome:
        """The stages, in order; each one's facts are an event."""
        from loracle.jobs.train import preflight
        from loracle.jobs.train.launch import check_recipe
        from loracle.jobs.train.mirror import open_url
        from loracle.jobs.train.place import local_card
        from loracle.jobs.train.reporters import check_reporters, place_reporters

        check_recipe(self.recipe)
        check_reporters(self.options.reporters)
        place_reporters(self.options.reporters, self.run.path)
        url = self.options.mirror or self.recipe.save.mirror
        if url is not None and is_main():
            open_url(url)
        self.card = local_card()
        self.source = facts.model_source(self.recipe.model)
        self.settled = self._settle()
        checkpoint = self._checkpoint_to_resume()
        preflight.check_disk(
            self.run.path, self.settled.setup, self.recipe.save.keep, merges=self.options.merges
        )
        self._event("started", step=checkpoint.step if checkpoint else 0, **self._start_facts())
        self._rehearse()
        self._load_tokenizer()
        train, evaluation = self._prepare_data()
        self._check_same_data(train, evaluation)
        model = self._load_model()
        train, evaluation = self._settle_layout(model, train, evaluation)
        self._write_facts(train, evaluation)
        if self.options.rehearsal:
            train, evaluation = self._longest(train), self._longest(evaluation)
        return self._train(model, train, evaluation, checkpoint)

    def _settle(self) -> "Settled":
        """What runs here; a tight or short memory is said before anything is loaded."""
        from loracle.jobs.train import preflight
        from loracle.jobs.train.settle import settle

        settled = settle(self.run, self.recipe, self.card)
        if settled.candidate is not None:
            findings = preflight.check_memory(
                settled.candidate.memory.device_bytes,
                settled.gpu.usable_bytes if settled.gpu else settled.candidate.usable_bytes,
                adapts=self.options.on_oom == "adapt",
            )
            self._report(findings)
        if settled.plan is not None and is_main() and not self.run.plan.is_file():
            from loracle.planner.plan_json import plan_document

            write_json(self.run.plan, plan_document(settled.plan))
        return settled

    def _checkpoint_to_resume(self) -> checkpoints.Checkpoint | None:
        if not self.resume:
            return None
        checkpoint, broken = checkpoints.newest_whole(self.run.checkpoints)
        for one, fault in broken:
            self._event("checkpoint_broken", step=one.step, file=fault)
        if checkpoint is None:
            return None
        manifest = checkpoint.manifest()
        if int(str(manifest["world_size"])) != world_size():
            self._event("world_changed", before=manifest["world_size"], now=world_size())
        return checkpoint

    def _rehearse(self) -> None:
        if not self.options.smoke or self.resume or world_size() > 1:
            return
        from loracle.jobs.train.smoke import rehearse

        rehearse(self.run, self.recipe, self.options)

    def _load_tokenizer(self) -> None:
        from loracle.jobs.train.model import generation_eos, load_tokenizer, special_tokens

        self.tokenizer = load_tokenizer(self.source)
        self.special = special_tokens(self.tokenizer, generation_eos(self.source))
        if self.special.pad_chosen:
            self._event("pad_chosen", token=self.special.pad_token)

    def _prepare_data(self) -> tuple[Any, Any]:
        from loracle.jobs.train import preflight
        from loracle.jobs.train.data import DataSpec, prepare_data

        training, data = self.recipe.training, self.recipe.data
        prepared = []
        self.data_seconds = 0.0
        for name, source in (("train", data.train), ("eval", data.eval)):
            if source is None:
                prepared.append(None)
                continue
            began = time.monotonic()
            spec = DataSpec(
                source=source, format=data.format, train_on=data.train_on,
                seq_len=training.seq_len, packing=self.settled.setup.packing, seed=training.seed,
            )  # fmt: skip
            one = prepare_data(spec, self.tokenizer, set(self.special.stop_ids))
            seconds = round(time.monotonic() - began, 2)
            self.data_seconds += seconds
            self._event("data", part=name, seconds=seconds, **asdict(one.counts))
            self._report(preflight.check_counts(one.counts, training.seq_len))
            prepared.append(one)
        return prepared[0], prepared[1]

    def _check_same_data(self, train: Any, evaluation: Any) -> None:
        """A resume repeats the order of the rows, so the rows must be the same."""
        before = self.known.get("data")
        if not self.resume or not isinstance(before, dict) or self.options.changed_ok:
            return
        for name, one in (("train", train), ("eval", evaluation)):
            if name not in before or one is None:
                continue
            old = [file["sha256"] for file in before[name]["files"]]
            if old != [file["sha256"] for file in one.files]:
                path = one.files[0]["path"]
                raise RunError(
                    "error.train.data_changed", code="E067", hint="hint.train.recipe_changed",
                    name=self.run.name, path=path,
                )  # fmt: skip

    def _load_model(self) -> Any:
        import torch

        from loracle.jobs.train.model import add_adapters, attention_of, load_base

        began = time.monotonic()
        if self.card:
            torch.cuda.set_device(self._device())
        torch.manual_seed(self.recipe.training.seed)
        model = load_base(self.source, self.settled.setup, self._device())
        self.settled = self.settled.with_changes(attention=attention_of(model))
        model = add_adapters(model, self.settled.setup)
        self.model_bytes = torch.cuda.memory_allocated() if self.card else None
        self._event(
            "model_loaded", seconds=round(time.monotonic() - began, 2),
            model_bytes=self.model_bytes,
        )  # fmt: skip
        return model

    def _device(self) -> Any:
        import torch

        return torch.device("cuda", local_rank()) if self.card else torch.device("cpu")

    def _settle_layout(self, model: Any, train: Any, evaluation: Any) -> tuple[Any, Any]:
        """Prove that documents are apart in this model; the rows, unpacked where they are not.

        The rows were packed before the model was loaded: tokenising forks workers, which is not
        safe beside a context on the card.
        """
        from loracle.jobs.train.isolation import architecture_of, settle_layout, use_layout
        from loracle.jobs.train.preflight import Finding
        from loracle.planner.packing import asks_to_pack

        setup, before = self.settled.setup, self._packed_before()
        asked = setup.with_changes(packing=setup.packing and before is not False)
        self.layout = from_main(lambda: settle_layout(model, asked, self._device()))
        use_layout(model, self.layout)
        self._forget_probe()
        self._event("layout", **asdict(self.layout))
        name = architecture_of(model)
        if self.layout.passed_over:
            self._report([Finding("kernel_leaks", {"architecture": name})])
        if before and not self.layout.packing and not self.options.changed_ok:
            raise RunError(
                "error.train.packing_changed", code="E067", hint="hint.train.recipe_changed",
                name=self.run.name,
            )  # fmt: skip
        if self.layout.packing == setup.packing:
            if asks_to_pack(self.recipe) and not setup.packing:
                self._report([Finding("packing_off", {"architecture": name})])
            return train, evaluation
        return self._without_packing(name, train, evaluation)

    def _packed_before(self) -> bool | None:
        """Whether the earlier starts of this run packed: another order of rows is another run."""
        layout = self.known.get("layout") if self.resume else None
        return bool(layout["packing"]) if isinstance(layout, dict) else None

    def _forget_probe(self) -> None:
        """Leave the card's figures as the loaded model left them."""
        if not self.card:
            return
        import torch

        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def _without_packing(self, name: str, train: Any, evaluation: Any) -> tuple[Any, Any]:
        from loracle.jobs.train.data import unpack
        from loracle.jobs.train.loop import num_steps
        from loracle.jobs.train.place import promise
        from loracle.jobs.train.preflight import Finding

        seed = self.recipe.training.seed
        plain, evaluation = (one and unpack(one, seed) for one in (train, evaluation))
        rows = {"packed": len(train.dataset), "sequences": len(plain.dataset)}
        steps = {f"{key}_steps": num_steps(self.recipe, count) for key, count in rows.items()}
        self._report([Finding("packing_leaks", {"architecture": name, **rows, **steps})])
        self.settled = self.settled.with_changes(packing=False)
        self._event("replanned", plan=promise(self.settled.candidate))
        return plain, evaluation

    def _longest(self, prepared: Any) -> Any:
        from loracle.jobs.train.data import longest_rows

        return prepared and longest_rows(prepared, 2 * self.recipe.training.effective_batch)

    def _train(
        self,
        model: Any,
        train: Any,
        evaluation: Any,
        checkpoint: checkpoints.Checkpoint | None,
    ) -> Outcome:
        from loracle.jobs.train.loop import Loop

        return Loop(
            run=self.run,
            recipe=self.recipe,
            options=self.options,
            setup=self.settled.setup,
            candidate=self.settled.candidate,
            tokenizer=self.tokenizer,
            special=self.special,
            status=self.status,
            data_seconds=self.data_seconds,
            model_bytes=self.model_bytes,
            gpu=self.settled.gpu,
        ).train(
            model, self.layout.flat, train.dataset, evaluation and evaluation.dataset, checkpoint
        )

    def _write_facts(self, train: Any, evaluation: Any) -> None:
        if not is_main():
            return
        document = dict(self.known) | {
            "model": {
                "ref": self.recipe.model,
                "source": self.source,
                "hash": facts.fingerprint_model(Path(self.source))
                if Path(self.source).is_dir()
                else None,
                "revision": facts.revision(self.source),
            },
            "method": self.settled.setup.method,
            "quant": facts.quant_facts(self.settled.setup),
            "data": {
                name: {"files": list(one.files), "counts": asdict(one.counts)}
                for name, one in (("train", train), ("eval", evaluation))
                if one is not None
            },
            "prompts_hash": train.prompts_hash,
            "special_tokens": {
                "stop_ids": sorted(self.special.stop_ids),
                "pad": self.special.pad_token,
            },
            "recipe_hash": facts.recipe_hash(self.recipe),
            "versions": facts.versions(),
            "machine": facts.machine(),
            "setup": facts.setup_facts(self.settled.setup),
            "layout": asdict(self.layout),
        }
        write_json(self.run.facts, document)

    def _start_facts(self) -> dict[str, object]:
        from loracle.jobs.train.place import promise

        setup = self.settled.setup
        return {
            "card": self.card.name if self.card else "cpu",
            "micro_batch": setup.micro_batch,
            "grad_accum": setup.grad_accum,
            "world_size": setup.num_gpus,
            "gradient_checkpointing": setup.gradient_checkpointing,
            "plan": promise(self.settled.candidate),
        }

    def _report(self, findings: list[Any]) -> None:
        for finding in findings:
            self._event("check", id=finding.id, values=finding.values)

    def _event(self, kind: str, **values: object) -> None:
        if is_main():
            append_event(self.run, kind, **values)
