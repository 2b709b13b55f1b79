"""The view of a run: a bar and three figures on a terminal, else one line a minute."""

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loracle.cli.output import Output
from loracle.units import gib

if TYPE_CHECKING:
    from loracle.jobs.runs import RunFolder

LINE_SECONDS = 60
_KEYS = (
    ("loss", "loss", ".4f"), ("tokens_per_s", "tok_per_s", ".0f"), ("spent", "spent", ".2f"),
)  # fmt: skip


def follow_run(output: Output, run: "RunFolder", *, pid: int | None = None, after: int = 0) -> int:
    """Show a run until it ends or Ctrl-C; returns the exit code that its end deserves."""
    from loracle.jobs.train.failure import failure_of
    from loracle.jobs.train.launch import follow

    view = _Bar(output, run) if sys.stdout.isatty() and output.mode == "human" else None
    lines = view or Lines(output, run)
    try:
        for event in follow(run, pid=pid, after=after):
            lines.show(event)
    except KeyboardInterrupt:
        lines.close()
        output.note(output.text("train.detached", name=run.name))
        return 130
    lines.close()
    failure = failure_of(run)
    if failure is not None:
        output.error(failure)
        return 1
    return 1 if run.status().get("reason") in ("budget", "not_finite") else 0


class Lines:
    """For logs and pipes: `key=value`, one step a minute, every other event at once.

    An event comes after the step that it follows, so that step is printed too.
    """

    def __init__(self, output: Output, run: "RunFolder") -> None:
        self.output, self.run = output, run
        self._printed = 0.0
        self._last: Mapping[str, Any] | None = None

    def show(self, event: Mapping[str, Any] | None) -> None:
        """Print an event, or hold a step back; None is a moment without news."""
        if event is None:
            return
        if event["event"] == "step":
            self._last = event
            if time.monotonic() - self._printed >= LINE_SECONDS:
                self._print_step(event)
            return
        told = sentences(self.output, self.run, event)
        if told:
            self.close()
        for sentence in told:
            self._say(f"{event['time']} {sentence}")

    def close(self) -> None:
        """Print the step that is held back, if there is one."""
        if self._last is not None:
            self._print_step(self._last)

    def _print_step(self, event: Mapping[str, Any]) -> None:
        self._printed, self._last = time.monotonic(), None
        self._say(f"{event['time']} {step_line(event)}")

    def _say(self, sentence: str) -> None:
        if self.output.mode == "human":
            self.output.line(sentence)


class _Bar:
    """For a terminal: what happened scrolls by, the state of the run stays below it."""

    def __init__(self, output: Output, run: "RunFolder") -> None:
        from rich.live import Live

        self.output, self.run = output, run
        self._plan: Mapping[str, Any] = {}
        self._step: Mapping[str, Any] | None = None
        self._eval: float | None = None
        self._seconds: list[float] = []
        self._live = Live(console=output.console(), refresh_per_second=4)
        self._live.start()

    def show(self, event: Mapping[str, Any] | None) -> None:
        if event is None:
            return
        kind = event["event"]
        if kind in ("started", "replanned"):
            self._plan = event.get("plan") or {}
        if kind == "evaluated":
            self._eval = event["eval_loss"]
        if kind == "step":
            self._step = event
            self._seconds = [*self._seconds[-19:], event["step_s"]]
            self._live.update(self._screen())
            return
        if kind == "saved":
            return
        for sentence in sentences(self.output, self.run, event):
            self._live.console.print(f"  {sentence}", markup=False)

    def close(self) -> None:
        self._live.stop()

    def _screen(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        assert self._step is not None
        step, steps = self._step["step"], self._step["steps"]
        left = (steps - step) * sum(self._seconds) / len(self._seconds)
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            Text(f"  {self.output.text('train.head.step')} {step:,}/{steps:,}"),
            ProgressBar(total=steps, completed=step, width=34),
            Text(f"{step / steps:.0%}"),
            Text(self.output.text("train.head.left", time=duration(left))),
        )
        return Group(
            Text(""), bar, Text(""), comparison(self.output, self._step, self._plan, self._eval)
        )


def comparison(
    output: Output,
    step: Mapping[str, Any],
    plan: Mapping[str, Any],
    eval_loss: float | None,
) -> Any:
    """Loss, speed, memory and money, beside the plan."""
    from rich.table import Table

    say = output.text
    table = Table(box=None, padding=(0, 2), pad_edge=True, header_style="bold")
    for heading in (
        "",
        say("train.head.now"),
        say("train.head.plan"),
        say("train.head.difference"),
    ):
        table.add_column(heading)
    evaluated = "" if eval_loss is None else f"  (eval {eval_loss:.3f})"
    table.add_row(say("train.head.loss"), f"{step['loss']:.3f}{evaluated}")
    planned = plan.get("tokens_per_s")
    table.add_row(
        say("train.head.speed"),
        f"{step['tokens_per_s']:,.0f} tokens/s",
        f"{planned:,.0f} tokens/s" if planned else "-",
        _speed_difference(output, step["tokens_per_s"], planned),
    )
    if "peak_bytes" in step:
        expected = plan.get("allocated_bytes")
        table.add_row(
            say("train.head.memory"),
            gib(step["peak_bytes"]),
            gib(expected) if expected else "-",
            _memory_difference(output, step["peak_bytes"], expected),
        )
    if "spent" in step:
        spent, currency = float(step["spent"]), step.get("currency", "")
        at_end = spent * step["steps"] / max(1, step["step"])
        table.add_row(say("train.head.spent"), f"{spent:.2f} {currency}")
        table.add_row(say("train.head.at_end"), f"{at_end:.2f} {currency}")
    return table


def sentences(output: Output, run: "RunFolder", event: Mapping[str, Any]) -> list[str]:
    """What an event says to a person; nothing for those that only machines read."""
    say, kind = output.text, event["event"]
    if kind == "alarm":
        values, message = _numbers(event["values"]), f"watch.{event['alarm']}"
        return [
            f"{say('label.warning')}: {say(message, **values)}",
            f"{say('label.hint')}: {say(f'{message}_hint', **values)}",
        ]
    if kind == "check":
        message = f"check.{event['id']}"
        return [f"{say('label.warning')}: {say(message, **event['values'])}"]
    if kind in ("started", "replanned"):
        plan = event.get("plan")
        if not plan:
            return [say("train.no_plan", card=event["card"])] if kind == "started" else []
        speed = plan.get("tokens_per_s")
        return [
            say(
                "train.plan",
                memory=gib(plan["device_bytes"]),
                speed=f"{speed:,.0f}" if speed else "-",
            )
        ]
    if kind == "stopped":
        reason = say(f"train.reason_{event['reason']}")
        return [say("train.stopped", step=event["step"], reason=reason, name=run.name)]
    if kind == "finished":
        path = run.adapter if run.adapter.is_dir() else run.model
        done = say("train.finished", step=event["step"], path=path)
        return [*_against_plan(output, event), done]
    if kind == "adapted":
        changes = ", ".join(
            say("train.changes_row", key=key, before=before, after=after)
            for key, (before, after) in event["changes"].items()
        )
        return [say("train.adapted", step=event["step"], changes=changes)]
    if kind == "out_of_memory":
        peak, plan = event.get("peak_bytes"), event.get("plan_bytes")
        return [
            say("train.oom", step=event["step"], phase=event["phase"],
                peak=gib(peak) if peak else "-", plan=gib(plan) if plan else "-")
        ]  # fmt: skip
    if kind == "evaluated":
        return [say("train.evaluated", step=event["step"], loss=event["eval_loss"])]
    simple = {
        "data": "train.data", "model_loaded": "train.model", "resumed": "train.resumed",
        "saved": "train.saved", "checkpoint_broken": "train.checkpoint_broken",
        "pad_chosen": "train.pad_chosen", "world_changed": "train.world_changed",
        "mirrored": "train.mirrored", "mirror_failed": "train.mirror_failed",
        "then": "train.then",
        "smoke": "train.rehearsed", "reporter_failed": "train.reporter_failed",
        "rng_lost": "train.rng_lost", "then_skipped": "train.then_skipped",
    }  # fmt: skip
    return [say(simple[kind], **event)] if kind in simple else []


def _against_plan(output: Output, event: Mapping[str, Any]) -> list[str]:
    """The whole run in one line, beside the plan where there is one."""
    plan, now = event.get("plan") or {}, event.get("tokens_per_s")
    if not plan.get("tokens_per_s") or not event.get("peak_bytes") or not now:
        return []
    return [
        output.text(
            "train.against_plan",
            speed=f"{now:,.0f}",
            planned_speed=f"{plan['tokens_per_s']:,.0f}",
            memory=gib(event["peak_bytes"]),
            planned_memory=gib(plan["allocated_bytes"]),
        )
    ]


def step_line(event: Mapping[str, Any]) -> str:
    """`step=412/1190 loss=1.184 tok_per_s=3035 ...`: never translated."""
    parts = [f"step={event['step']}/{event['steps']}"]
    parts += [f"{name}={float(event[key]):{form}}" for key, name, form in _KEYS if key in event]
    if "peak_bytes" in event:
        parts.append(f"peak_gib={event['peak_bytes'] / 2**30:.2f}")
    left = (event["steps"] - event["step"]) * event["step_s"]
    return " ".join([*parts, f"eta_s={left:.0f}"])


def duration(seconds: float) -> str:
    """`2 h 26 min`, `48 s`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Money was written as text; format fields want numbers."""
    return {
        key: float(value) if key in ("amount", "budget") and value is not None else value
        for key, value in values.items()
    }


def _speed_difference(output: Output, now: float, plan: float | None) -> str:
    if not plan:
        return ""
    percent = round(abs(now / plan - 1) * 100)
    return output.text("train.head.faster" if now >= plan else "train.head.slower", percent=percent)


def _memory_difference(output: Output, now: float, plan: float | None) -> str:
    if not plan:
        return ""
    message = "train.head.more" if now >= plan else "train.head.less"
    return output.text(message, amount=gib(abs(now - plan)))
