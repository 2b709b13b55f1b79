"""What may be wrong with a run, from the numbers of its steps: pure, so that every rule is tested.

Each rule speaks once when it begins to hold, and again only after it has stopped holding. An alarm
is a message id (`watch.<id>` in the message files, its hint `watch.<id>_hint`) with its numbers;
some ask the run to stop.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import median

WINDOW = 20  # steps that a judgement of speed or use rests on
FLAT_AFTER = 100
NOT_FINITE_LIMIT = 3
SPEED_TOLERANCE = 0.9  # of the plan's low end
LOW_USE = 0.60  # claim A-S2
WAIT_SHARE = 0.15
TOKENISING_SHARE, TOKENISING_SECONDS = 0.1, 60
EXPLODED = 3.0  # times the median of the window before


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One optimizer step as it was seen; None where this machine cannot tell.

    `fetch_seconds` and `collate_seconds` are what the step waited for its data: reading rows, and
    making tensors of them.
    """

    step: int
    loss: float
    grad_norm: float | None = None
    tokens_per_s: float
    step_seconds: float
    fetch_seconds: float = 0.0
    collate_seconds: float = 0.0
    gpu_use: float | None = None
    free_memory_share: float | None = None
    throttled: str | None = None  # thermal, power, hardware
    ecc_errors: int = 0  # uncorrected, since the run began
    xid: int | None = None
    foreign_bytes: int = 0  # memory of other processes on the card
    spent: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that is off. `stop` asks the run to save and end."""

    id: str
    values: dict[str, object]
    stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the run is held against: the plan's speed (low end), the budget, the number of steps."""

    num_steps: int
    tokens_per_s_low: float | None = None
    data_seconds: float = 0.0  # reading and tokenising, before the first step
    budget: Decimal | None = None
    currency: str = ""


@dataclass
class Watch:
    """Looks at one reading after the other."""

    expected: Expected
    _recent: deque[Reading] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _losses: list[float] = field(default_factory=list)
    _holding: dict[str, bool] = field(default_factory=dict)  # rule: whether it asked to stop
    _not_finite: int = 0
    _first_step: int | None = None
    _first_spent: Decimal | None = None

    def look(self, reading: Reading) -> list[Alarm]:
        """Alarms that begin with this step."""
        if self._first_step is None:
            self._first_step, self._first_spent = reading.step, reading.spent
        self._recent.append(reading)
        alarms = []
        for rule in _RULES:
            found = rule(self, reading)
            name = rule.__name__
            before = self._holding.pop(name, None)
            if found is None:
                continue
            self._holding[name] = found.stop
            if before is None or found.stop > before:
                alarms.append(found)
        if math.isfinite(reading.loss):
            self._losses.append(reading.loss)
        return alarms

    def _median(self, value: Callable[[Reading], float | None]) -> float | None:
        """Median over a full window, None before or where it is not known."""
        values = [one for one in map(value, self._recent) if one is not None]
        return median(values) if len(values) == WINDOW else None


def _not_finite(watch: Watch, now: Reading) -> Alarm | None:
    gradient = now.grad_norm if now.grad_norm is not None else 0.0
    if math.isfinite(now.loss) and math.isfinite(gradient):
        watch._not_finite = 0
        return None
    watch._not_finite += 1
    stop = watch._not_finite >= NOT_FINITE_LIMIT
    return Alarm("not_finite", {"step": now.step, "in_a_row": watch._not_finite}, stop)


def _exploding(watch: Watch, now: Reading) -> Alarm | None:
    if len(watch._losses) < WINDOW or not math.isfinite(now.loss):
        return None
    before = median(watch._losses[-WINDOW:])
    if now.loss <= EXPLODED * before or now.loss < before + 1:
        return None
    return Alarm("exploding", {"step": now.step, "loss": now.loss, "before": before})


def _flat(watch: Watch, now: Reading) -> Alarm | None:
    losses = watch._losses
    if len(losses) < FLAT_AFTER:
        return None
    first, last = median(losses[:WINDOW]), median(losses[-WINDOW:])
    spread = median(abs(one - last) for one in losses[-WINDOW:])
    if last < first - max(spread, 0.005 * first) or last < 0.05:
        return None
    return Alarm("flat", {"step": now.step, "first": first, "loss": last})


def _slow(watch: Watch, now: Reading) -> Alarm | None:
    low = watch.expected.tokens_per_s_low
    speed = watch._median(lambda one: one.tokens_per_s)
    if low is None or speed is None or speed >= SPEED_TOLERANCE * low:
        return None
    return Alarm("slow", {"tokens_per_s": speed, "plan_tokens_per_s": low, "share": speed / low})


def _starved(watch: Watch, now: Reading) -> Alarm | None:
    """The card waits for data while it has memory to spare: the pipeline, and which part of it."""
    use = watch._median(lambda one: one.gpu_use)
    wait = watch._median(lambda one: (one.fetch_seconds + one.collate_seconds) / one.step_seconds)
    if use is None or wait is None or use >= LOW_USE or wait < WAIT_SHARE:
        return None
    fetch = watch._median(lambda one: one.fetch_seconds) or 0.0
    collate = watch._median(lambda one: one.collate_seconds) or 0.0
    cause = "disk" if fetch >= collate else "workers"
    return Alarm(f"starved_{cause}", {"gpu_use": use, "wait_share": wait})


def _tokenised(watch: Watch, now: Reading) -> Alarm | None:
    """The card stood still while the data was prepared, for a good part of the whole job."""
    step_seconds = watch._median(lambda one: one.step_seconds)
    data = watch.expected.data_seconds
    if step_seconds is None or data < TOKENISING_SECONDS:
        return None
    share = data / (data + step_seconds * watch.expected.num_steps)
    if share < TOKENISING_SHARE:
        return None
    return Alarm("starved_tokenising", {"seconds": data, "share": share})


def _idle_card(watch: Watch, now: Reading) -> Alarm | None:
    """Low use without waiting for data: launches limit, and a larger micro-batch would help."""
    use = watch._median(lambda one: one.gpu_use)
    free = now.free_memory_share
    wait = watch._median(lambda one: (one.fetch_seconds + one.collate_seconds) / one.step_seconds)
    if use is None or wait is None or free is None:
        return None
    if use >= LOW_USE or wait >= WAIT_SHARE or free < 0.25:
        return None
    return Alarm("idle_card", {"gpu_use": use, "free_share": free})


def _throttled(watch: Watch, now: Reading) -> Alarm | None:
    causes = [one.throttled for one in watch._recent if one.throttled]
    if len(watch._recent) < WINDOW or len(causes) < WINDOW // 2:
        return None
    return Alarm(f"throttled_{causes[-1]}", {"share": len(causes) / WINDOW})


def _ecc(watch: Watch, now: Reading) -> Alarm | None:
    return Alarm("ecc", {"errors": now.ecc_errors}) if now.ecc_errors > 0 else None


def _xid(watch: Watch, now: Reading) -> Alarm | None:
    return Alarm("xid", {"xid": now.xid}) if now.xid is not None else None


def _shared(watch: Watch, now: Reading) -> Alarm | None:
    if now.foreign_bytes <= 0:
        return None
    return Alarm("shared", {"bytes": now.foreign_bytes})


def _over_budget(watch: Watch, now: Reading) -> Alarm | None:
    budget = watch.expected.budget
    if budget is None or now.spent is None or now.spent < budget:
        return None
    return Alarm("over_budget", _money(watch, now.spent), stop=True)


def _will_cost_more(watch: Watch, now: Reading) -> Alarm | None:
    budget, first = watch.expected.budget, watch._first_step
    if budget is None or now.spent is None or first is None or watch._first_spent is None:
        return None
    done = now.step - first
    if done < WINDOW:
        return None
    per_step = (now.spent - watch._first_spent) / done
    at_end = now.spent + per_step * (watch.expected.num_steps - now.step)
    return Alarm("will_cost_more", _money(watch, at_end)) if at_end > budget else None


def _money(watch: Watch, amount: Decimal) -> dict[str, object]:
    return {
        "amount": amount,
        "budget": watch.expected.budget,
        "currency": watch.expected.currency,
    }


_RULES: tuple[Callable[[Watch, Reading], Alarm | None], ...] = (
    _not_finite, _exploding, _flat, _slow, _starved, _tokenised, _idle_card, _throttled, _ecc,
    _xid, _shared, _over_budget, _will_cost_more,
)  # fmt: skip


def alarm_ids() -> Iterator[str]:
    """Every id that an alarm can have, for the test that each has its words."""
    yield from (
        "not_finite", "exploding", "flat", "slow", "starved_disk", "starved_workers",
        "starved_tokenising", "idle_card",
        "throttled_thermal", "throttled_power", "throttled_hardware", "ecc", "xid", "shared",
        "over_budget", "will_cost_more",
    )  # fmt: skip
