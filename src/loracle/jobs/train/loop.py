"""The loop and its ends: finished, stopped with a checkpoint, out of memory, a full disk."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import torch

from loracle.domain.gpu import Gpu
from loracle.domain.plan import Candidate
from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.errors import MachineError, RunError
from loracle.jobs.runs import RunFolder, append_event, write_status
from loracle.jobs.train import checkpoints, facts, relief
from loracle.jobs.train.faults import is_out_of_memory
from loracle.jobs.train.mirror import Mirror
from loracle.jobs.train.model import SpecialTokens
from loracle.jobs.train.options import Options
from loracle.jobs.train.outcome import Outcome
from loracle.jobs.train.place import promise
from loracle.jobs.train.pulse import Pulse, Stopper
from loracle.jobs.train.readings import card_watcher
from loracle.jobs.train.record import write_record
from loracle.jobs.train.reporters import close_reporters, start_reporters
from loracle.jobs.train.trainer import (
    Interrupted,
    LoracleTrainer,
    SaveRules,
    training_arguments,
)
from loracle.jobs.train.watch import Expected
from loracle.jobs.train.world import is_main, signals_ask


def num_steps(recipe: Recipe, rows: int) -> int:
    """Optimizer steps of the whole run over so many rows."""
    if recipe.training.steps is not None:
        return recipe.training.steps
    return max(1, -(-int(rows * recipe.epochs) // recipe.training.effective_batch))


@dataclass(kw_only=True)
class Loop:
    """One pass through the trainer, with all that is known by then."""

    run: RunFolder
    recipe: Recipe
    options: Options
    setup: TrainingSetup
    candidate: Candidate | None
    gpu: Gpu | None
    tokenizer: Any
    special: SpecialTokens
    status: dict[str, object]
    model_bytes: int | None
    data_seconds: float
    on_step: Callable[[dict[str, object]], None] = field(default=lambda event: None)

    def train(
        self,
        model: Any,
        flat: bool,
        train_rows: Any,
        eval_rows: Any,
        checkpoint: checkpoints.Checkpoint | None,
    ) -> Outcome:
        """Train from the checkpoint or from the start, until an end."""
        self.stopper = Stopper(self.run.stop_request)
        self.mirror = self._mirror()
        trainer = self._trainer(model, flat, train_rows, eval_rows)
        if is_main():
            write_status(self.run, state="running", steps=self.pulse.expected.num_steps)
            start_reporters(self.options.reporters, self.run.name)
        if checkpoint is not None:
            self._event("resumed", step=checkpoint.step)
        try:
            with signals_ask(self.stopper.ask):
                trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
        except Interrupted as interrupted:
            return self._interrupted(trainer, interrupted)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return self._out_of_memory(trainer, "optimizer")
        finally:
            if self.pulse.card is not None:
                self.pulse.card.close()
        return self._ended(trainer)

    def _trainer(self, model: Any, flat: bool, train_rows: Any, eval_rows: Any) -> LoracleTrainer:
        save = self.recipe.save
        arguments = training_arguments(
            self.recipe,
            self.setup,
            folder=self.run.checkpoints,
            has_eval=eval_rows is not None,
            on_card=torch.cuda.is_available(),
            reporters=self.options.reporters,
            run_name=self.run.name,
        )
        speed = self.candidate.speed if self.candidate else None
        self.pulse = Pulse(
            self.run,
            self.options,
            Expected(
                num_steps=num_steps(self.recipe, len(train_rows)),
                tokens_per_s_low=speed.tokens_per_s.low if speed else None,
                data_seconds=self.data_seconds,
                budget=self.options.budget,
                currency=self.options.currency,
            ),
            self.stopper,
            every_minutes=save.every_minutes,
            card=card_watcher(),
            spent_before=Decimal(str(self.status.get("spent") or "0")),
            on_step=self.on_step,
        )
        trainer = LoracleTrainer(
            model,
            self.setup,
            arguments,
            tokenizer=self.tokenizer,
            pad_token_id=self.special.pad_token_id,
            train_rows=train_rows,
            eval_rows=eval_rows,
            flat=flat,
            rules=SaveRules(
                folder=self.run.checkpoints,
                keep=save.keep,
                recipe_hash=facts.recipe_hash(self.recipe),
                on_saved=self._saved,
                on_rng_lost=lambda cause: self._event("rng_lost", cause=cause),
            ),
            callbacks=[self.pulse],
            on_reporter_failed=lambda name, cause: self._event(
                "reporter_failed", name=name, cause=cause
            ),
        )
        self.pulse.trainer = trainer
        return trainer

    def _saved(self, saved: checkpoints.Checkpoint, gone: list[int]) -> None:
        size = checkpoints.folder_bytes(saved.path)
        self._event("saved", step=saved.step, bytes=size, removed=gone)
        if self.mirror is not None:
            self.mirror.copy_checkpoint(saved.path, gone)

    def _ended(self, trainer: LoracleTrainer) -> Outcome:
        """The loop came to its end by itself or was asked to stop at a whole step."""
        step, reason = trainer.state.global_step, self.stopper.reason
        if reason is not None and step < trainer.state.max_steps:
            return self._stopped(reason, step)
        self._save_result(trainer)
        if is_main():
            write_record(self.run, self.setup, self.gpu, self.model_bytes)
            self._event("finished", step=step, spent=self.pulse.spent(), **self._summary())
            self._finish_mirror()
            write_status(self.run, state="finished", reason="")
            self._then()
        return Outcome(state="finished", step=step)

    def _summary(self) -> dict[str, object]:
        """What was read over the last start, beside what was planned."""
        measured = json.loads(self.run.record.read_text("utf-8"))["measured"]
        return {
            "tokens_per_s": measured["tokens_per_s"],
            "peak_bytes": measured["peak_allocated_bytes"],
            "reserved_bytes": measured["peak_reserved_bytes"],
            "plan": promise(self.candidate),
        }

    def _stopped(self, reason: str, step: int) -> Outcome:
        self._event("stopped", step=step, reason=reason, spent=self.pulse.spent())
        if is_main():
            self._finish_mirror()
            write_status(self.run, state="stopped", reason=reason)
        return Outcome(state="stopped", reason=reason, step=step)

    def _interrupted(self, trainer: LoracleTrainer, interrupted: Interrupted) -> Outcome:
        """Left in the middle of a step: the last whole one is saved first."""
        step = trainer.state.global_step
        self.pulse.flush(trainer.state, {})
        if step > 0:
            trainer.save_interrupted()
        if interrupted.reason == "out_of_memory":
            return self._out_of_memory(trainer, interrupted.phase)
        return self._stopped(interrupted.reason, step)

    def _out_of_memory(self, trainer: LoracleTrainer, phase: str) -> Outcome:
        """Say what was measured and planned; turn the next rung or name what could be turned."""
        step = trainer.state.global_step
        self.pulse.flush(trainer.state, {})
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
        memory = self.candidate.memory if self.candidate else None
        self._event(
            "out_of_memory",
            step=step,
            phase=phase,
            peak_bytes=peak,
            reserved_bytes=torch.cuda.max_memory_reserved() if peak is not None else None,
            plan_bytes=memory.allocated_bytes.likely if memory else None,
            grew=_largest_terms(memory),
        )
        rung = relief.next_rung(self.setup, phase)
        if self.options.on_oom != "adapt" or rung is None or self.setup.num_gpus > 1:
            raise MachineError(
                "error.train.oom",
                code="E055",
                hints=(("hint.train.adapt",) if rung else ()) + relief.ADVICE,
                step=step,
                phase=phase,
                run=self.run.name,
            )
        changes = {key: new for key, (_, new) in rung.changes.items()}
        self._event("adapted", step=step, rung=rung.name, changes=rung.changes)
        adapted = dict(self.status.get("adapted") or {}) | changes  # type: ignore[call-overload]
        write_status(self.run, state="starting", adapted=adapted)
        self._close_reporters(trainer)
        return Outcome(state="adapted", reason=rung.name, step=step)

    def _close_reporters(self, trainer: LoracleTrainer) -> None:
        """The next start replaces this process, and nothing is written at an exit."""
        trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        if is_main():
            close_reporters(
                self.options.reporters,
                lambda name, cause: self._event("reporter_failed", name=name, cause=cause),
            )

    def _save_result(self, trainer: LoracleTrainer) -> None:
        """The adapter (or model) and its tokenizer, beside first, then by its name."""
        state = None
        if trainer.is_fsdp_enabled:  # every process holds a part and must help to gather it
            state = trainer.accelerator.get_state_dict(trainer.model)
        if not trainer.args.should_save:
            return
        target = self.run.model if self.setup.lora is None else self.run.adapter
        beside = target.with_name(f".{target.name}")
        shutil.rmtree(beside, ignore_errors=True)
        model = trainer.accelerator.unwrap_model(trainer.model)
        options = {"save_embedding_layers": False} if self.setup.lora is not None else {}
        try:
            model.save_pretrained(beside, state_dict=state, **options)
            self.tokenizer.save_pretrained(beside)
            shutil.rmtree(target, ignore_errors=True)
            beside.rename(target)
        except OSError as error:
            raise RunError(
                "error.train.save", code="E064", hint="hint.train.save", path=str(target),
                step=trainer.state.global_step, cause=error.strerror or str(error),
            ) from error  # fmt: skip

    def _mirror(self) -> Mirror | None:
        url = self.options.mirror or self.recipe.save.mirror
        if url is None or not is_main():
            return None
        return Mirror(url, self.run, report=self._event)

    def _finish_mirror(self) -> None:
        if self.mirror is not None:
            self.mirror.copy_results()
            self.mirror.finish()

    def _then(self) -> None:
        """The command for an unattended end, only after every copy has arrived."""
        command = self.options.then
        if command is None:
            return
        if self.mirror is not None and self.mirror.failed:
            self._event("then_skipped", reason="mirror")
            return
        import subprocess

        self._event("then", command=command)
        subprocess.Popen(command, shell=True, start_new_session=True)

    def _event(self, kind: str, **values: object) -> None:
        if is_main():
            self.on_step(append_event(self.run, kind, **values))


def _largest_terms(memory: Any) -> list[dict[str, object]]:
    """The plan's largest terms at the peak: where the bytes that were too many belong."""
    if memory is None:
        return []
    terms = sorted(memory.terms, key=lambda term: -term.value)[:3]
    return [{"id": term.id, "bytes": term.value} for term in terms]
