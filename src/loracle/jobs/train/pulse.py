"""The run's pulse: one event a step, and the decisions to save, to stop, to raise an alarm.

Reading a loss waits for the card, and a card that waits for its next step is paid for nothing. On
one card the losses are therefore held as tensors and read together every few seconds, and before
anything that must not lose them: a save, an evaluation, an end.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from loracle.jobs.runs import RunFolder, append_event, write_status
from loracle.jobs.train.options import Options
from loracle.jobs.train.readings import CardState, CardWatcher
from loracle.jobs.train.trainer import Interrupted, LoracleTrainer
from loracle.jobs.train.watch import Alarm, Expected, Reading, Watch

HOLD_SECONDS = 5.0  # longest time that events lag behind the run


@dataclass(frozen=True, slots=True)
class _Held:
    """A step whose loss nobody has read yet."""

    step: int
    loss: torch.Tensor
    tokens: int
    fetch: float
    collate: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """A step whose loss was read: its time and data, and the card over the same window."""

    step: int
    loss: float
    seconds: float
    tokens: int
    fetch: float
    collate: float
    card: CardState


class Stopper:
    """Why the run should end, if it should: a signal, a stop file, the budget, an alarm."""

    def __init__(self, request: Path) -> None:
        self._request = request
        self._reason: str | None = None

    def ask(self, reason: str) -> None:
        """Ask to end; the first reason counts."""
        self._reason = self._reason or reason

    @property
    def reason(self) -> str | None:
        """Why to end now, or None."""
        if self._reason is None and self._request.exists():
            self._reason = "stop"
        return self._reason


class Pulse(TrainerCallback):
    """Called by the trainer at each step; the main process writes, the others only obey."""

    def __init__(
        self,
        run: RunFolder,
        options: Options,
        expected: Expected,
        stopper: Stopper,
        *,
        every_minutes: float | None,
        card: CardWatcher | None,
        spent_before: Decimal,
        on_step: Callable[[dict[str, object]], None],
    ) -> None:
        self.run, self.options, self.stopper = run, options, stopper
        self.watch = Watch(expected)
        self.expected = expected
        self.trainer: LoracleTrainer
        self._every_seconds = every_minutes and every_minutes * 60
        self.card = card
        self._spent_before = spent_before
        self._on_step = on_step
        self._began = self._saved = self._step_ended = time.monotonic()
        self._held: list[_Held] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """The clocks start here: loading and tokenising have events of their own."""
        self._saved = self._step_ended = time.monotonic()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Between micro-steps: a machine that is taken away does not wait for the step's end."""
        if self._agreed(self.stopper.reason) == "terminated":
            raise Interrupted("terminated")

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """From here on the weights are between two steps."""
        self.trainer.phase = "optimizer"

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Keep the RNG of a whole step; save by the clock; end when asked."""
        self.trainer.phase = "between"
        self.trainer.remember_rng()
        due = self._every_seconds and time.monotonic() - self._saved >= self._every_seconds
        reason = self.stopper.reason
        if self._agreed("due" if due else None):
            control.should_save = True
        if self._agreed(reason):
            control.should_save = True
            control.should_training_stop = True
        if self.trainer.holds_losses:
            loss, counts = self.trainer.take_step_loss(), self.trainer.take_step_counts()
            self._held.append(_Held(state.global_step, loss, *counts))
            control.should_log |= (
                control.should_save
                or control.should_evaluate
                or control.should_training_stop
                or time.monotonic() - self._step_ended >= HOLD_SECONDS
            )
        return control

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: Any, logs: Any, **kwargs: Any
    ) -> None:
        """One event a step; the loss was just read, so the card is done with the step."""
        if "loss" not in logs:
            if "eval_loss" in logs:
                self._event("evaluated", step=state.global_step, eval_loss=logs["eval_loss"])
            return
        if self._held:
            self.flush(state, logs)
            return
        now = time.monotonic()
        seconds, self._step_ended = now - self._step_ended, now
        counts = self.trainer.take_step_counts()
        seen = _Seen(state.global_step, float(logs["loss"]), seconds, *counts, self._card_state())
        self._tell(state, seen, logs)

    def flush(self, state: TrainerState, logs: Any) -> None:
        """Read the held losses and tell their steps; each gets the mean time of the window."""
        held, self._held = self._held, []
        if not held:
            return
        losses = torch.stack([one.loss.float() for one in held]).tolist()  # waits for the card
        now = time.monotonic()
        seconds, self._step_ended = (now - self._step_ended) / len(held), now
        card = self._card_state()
        for one, loss in zip(held, losses, strict=True):
            seen = _Seen(one.step, loss, seconds, one.tokens, one.fetch, one.collate, card)
            self._tell(state, seen, logs if one is held[-1] else {})

    def _tell(self, state: TrainerState, seen: _Seen, logs: Any) -> None:
        reading, event = self._read(state, seen, logs)
        self.trainer.finite = math.isfinite(reading.loss)
        if not state.is_world_process_zero:
            return
        alarms = self.watch.look(reading)
        append_event(self.run, "step", **event)
        write_status(self.run, flush=False, step=seen.step, spent=str(event.get("spent") or "0"))
        self._on_step(event)
        for alarm in alarms:
            self._raise(alarm, seen.step)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> TrainerControl:
        """The best weights so far are worth a checkpoint; time spent here is no step's."""
        loss = metrics.get("eval_loss")
        if loss is not None and math.isfinite(loss):
            control.should_save |= state.best_metric is None or loss < state.best_metric
        self._step_ended = time.monotonic()
        return control

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        """A checkpoint was written: the minutes count anew, and its time is no step's."""
        self._saved = self._step_ended = time.monotonic()

    def spent(self) -> Decimal | None:
        """Money so far, over all starts of this run; None without a price."""
        if self.options.price_per_hour is None:
            return None
        hours = Decimal(str(round((time.monotonic() - self._began) / 3600, 6)))
        return self._spent_before + self.options.price_per_hour * hours

    def _card_state(self) -> CardState:
        return self.card.take() if self.card else CardState()

    def _read(
        self, state: TrainerState, seen: _Seen, logs: Any
    ) -> tuple[Reading, dict[str, object]]:
        trainer, card = self.trainer, seen.card
        spent = self.spent()
        on_card = torch.cuda.is_available()
        free_share = None
        if on_card:
            free, total = torch.cuda.mem_get_info()
            free_share = free / total
        reading = Reading(
            step=seen.step,
            loss=seen.loss,
            grad_norm=None
            if trainer.accelerator.optimizer_step_was_skipped
            else logs.get("grad_norm"),
            tokens_per_s=seen.tokens / seen.seconds,
            step_seconds=seen.seconds,
            fetch_seconds=seen.fetch,
            collate_seconds=seen.collate,
            gpu_use=card.use,
            free_memory_share=free_share,
            throttled=card.throttled,
            ecc_errors=card.ecc_errors,
            xid=card.xid,
            foreign_bytes=card.foreign_bytes,
            spent=spent,
        )
        event: dict[str, object] = {
            "step": seen.step,
            "steps": state.max_steps,
            "loss": reading.loss,
            "grad_norm": reading.grad_norm,
            "lr": logs.get("learning_rate"),
            "epoch": logs.get("epoch"),
            "tokens_per_s": round(reading.tokens_per_s, 1),
            "step_s": round(seen.seconds, 4),
            "data_wait_s": round(seen.fetch + seen.collate, 4),
            "spent": spent,
            "currency": self.options.currency if spent is not None else None,
        }
        if on_card:
            event |= {
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "device_bytes": card.used_bytes,
                "gpu_use": card.use,
                "power_w": card.power_w,
                "temperature_c": card.temperature_c,
                "sm_clock_hz": card.sm_clock_hz,
            }
        return reading, {key: value for key, value in event.items() if value is not None}

    def _raise(self, alarm: Alarm, step: int) -> None:
        self._event("alarm", alarm=alarm.id, step=step, values=alarm.values, stops=alarm.stop)
        if alarm.stop:
            self.stopper.ask("budget" if alarm.id == "over_budget" else alarm.id)

    def _event(self, kind: str, **values: object) -> None:
        if self.trainer.args.should_save:
            event = append_event(self.run, kind, **values)
            self._on_step(event)

    def _agreed(self, reason: str | None) -> str | None:
        """The main process's word, so that all processes leave at the same step."""
        if self.trainer.args.world_size == 1:
            return reason
        said = [reason]
        torch.distributed.broadcast_object_list(said, src=0)
        return said[0]
