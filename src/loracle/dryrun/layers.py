"""Layers repeat: run a few of them, place the rest, exactly.

A decoder's layers are alike up to a pattern (sliding and full attention, dense and sparse), so the
events of layer j are those of layer j - p with every storage renamed by p layers. The model is
built with a few layers at each end and two periods in between; if the two periods agree event by
event under that renaming, one of them is placed as often as the real model has it. If they do not,
the caller runs the whole model. Nothing is interpolated: the result is the log that the full run
would have written.
"""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loracle.domain.trace import Op
from loracle.dryrun.recorder import Segment

Slot = int | str | None
HEAD = 2  # layers at the start that are kept as they are, at least: the first one is special
TAIL = 2
MAX_PERIOD = 12


class NotPeriodic(Exception):
    """The traced layers do not repeat; run the whole model."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which traced layer stands for which layer of the model."""

    num_layers: int
    traced: int
    period: int
    head: int = HEAD

    @property
    def extra(self) -> int:
        """Layers of the model that are not traced."""
        return self.num_layers - self.traced

    @property
    def first_repeat(self) -> int:
        """The first layer of the second traced period."""
        return self.head + self.period

    def source(self, layer: int) -> int:
        """The traced layer that `layer` copies."""
        if layer < self.head + 2 * self.period:
            return layer
        if layer >= self.head + 2 * self.period + self.extra:
            return layer - self.extra
        return self.first_repeat + (layer - self.head) % self.period

    def moved(self, layer: int) -> int:
        """Where a traced layer that is not repeated ends up in the model."""
        return layer if layer < self.head + 2 * self.period else layer + self.extra


def make_plans(signatures: Sequence[object]) -> list[Plan]:
    """What to try in turn: the shortest repeating plan, one with a longer head, all layers.

    What only one kind of layer uses (Gemma 3's rotary tables, one for each kind of attention) is
    let go in the backward pass of the first layer of that kind, so that layer may have to be kept
    out of what repeats.
    """
    kinds = 1 + max(signatures.index(kind) for kind in set(signatures))
    plans = [make_plan(signatures, head) for head in dict.fromkeys((HEAD, max(HEAD, kinds)))]
    whole = Plan(len(signatures), len(signatures), 0)
    return [*(plan for plan in plans if plan.period), whole]


def make_plan(signatures: Sequence[object], head: int = HEAD) -> Plan:
    """The shortest repeating plan for the layers' signatures; all layers where none is shorter."""
    total = len(signatures)
    for period in range(1, MAX_PERIOD + 1):
        middle = total - head - TAIL
        if middle <= 2 * period:
            break
        stop = total - TAIL - period
        if all(signatures[i] == signatures[i + period] for i in range(head, stop)):
            traced = head + 2 * period + middle % period + TAIL
            if traced < total:
                return Plan(total, traced, period, head)
    return Plan(total, total, 0)


def signatures(config: Any, checkpoint_every: int, checkpointing: bool) -> list[object]:
    """What tells the layers of a config apart.

    Every list with one entry a layer, and the knobs that count layers.
    """
    total = int(config.num_hidden_layers)
    lists = per_layer_lists(config)
    dense_first = int(getattr(config, "first_k_dense_replace", 0) or 0)
    sparse_step = int(getattr(config, "decoder_sparse_step", 1) or 1)
    dense_only = set(getattr(config, "mlp_only_layers", None) or ())
    return [
        (
            tuple(repr(values[i]) for values in lists.values()),
            i < dense_first,
            (i + 1) % sparse_step == 0,
            i in dense_only,
            checkpointing and i % max(checkpoint_every, 1) == 0,
        )
        for i in range(total)
    ]


def per_layer_lists(config: Any) -> dict[str, list[Any]]:
    """Config attributes that hold one entry a layer."""
    total = int(config.num_hidden_layers)
    return {
        name: list(value)
        for name, value in vars(config).items()
        if isinstance(value, list | tuple) and len(value) == total and total > 1
    }


def shrink(config: Any, plan: Plan) -> Any:
    """The config with the traced layers only."""
    small = copy.deepcopy(config)
    kept = [plan.moved(i) for i in range(plan.traced)]
    lists = per_layer_lists(config)
    small.num_hidden_layers = plan.traced
    for name, values in lists.items():
        setattr(small, name, [values[i] for i in kept])
    return small


@dataclass(slots=True)
class Log:
    """A log under construction; also what the optimizers write to."""

    events: list[int]
    sizes: list[int]
    owners: list[tuple[str, str, str]]
    marks: list[tuple[int, str]]
    ops: Counter[Op]

    def born(self, size: int, kind: str, op: str = "") -> int:
        """Log a birth."""
        number = len(self.sizes)
        self.sizes.append(size)
        self.owners.append(("", kind, op))
        self.events.append(number)
        return number

    def died(self, number: int) -> None:
        """Log a death."""
        self.events.append(~number)

    def mark(self, phase: str) -> None:
        """Start a phase."""
        self.marks.append((len(self.events), phase))


class Placer:
    """Places traced segments in a log of the whole model."""

    def __init__(
        self, segments: Sequence[Segment], sizes: Sequence[int],
        owners: Sequence[tuple[str, str, str]], plan: Plan,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.sizes = sizes
        self.owners = owners
        self.log = Log([], [], [], [], Counter())
        self._home: dict[int, tuple[str, Slot, int]] = {}
        self._new: dict[tuple[str, Slot, int], int] = {}
        self._stages = _stages(segments)
        self._slots: dict[int, Slot] = {}
        for run in self._stages:
            outside = 0
            for segment in run:
                slot: Slot = segment.layer
                if slot is None:
                    slot, outside = f"outside {outside}", outside + 1
                self._slots[id(segment)] = slot
                ordinal = 0
                for event in segment.events:
                    if event >= 0:
                        self._home[event] = (segment.stage, slot, ordinal)
                        ordinal += 1
        if plan.period:
            self._check()

    @property
    def stages(self) -> list[list[Segment]]:
        """Sweeps in order: runs of segments that belong together."""
        return self._stages

    def place(self, run: Sequence[Segment], later: int = 0, times: int = 1) -> None:
        """Write one sweep, with the layers that were not traced.

        `later` places a copy that many optimizer steps after the traced one; `times` is how often
        the operations count.
        """
        layers = [s.layer for s in run if s.layer is not None]
        if not layers or not self.plan.period:
            for segment in run:
                self._write(segment, segment.layer, later, times)
            return
        by_layer = {s.layer: s for s in run}
        if sorted(layers) != list(range(self.plan.traced)):
            raise NotPeriodic(run[0].stage)
        first = next(i for i, s in enumerate(run) if s.layer is not None)
        last = max(i for i, s in enumerate(run) if s.layer is not None)
        for segment in run[:first]:
            self._write(segment, None, later, times)
        order = range(self.plan.num_layers)
        for layer in order if layers[0] == 0 else reversed(order):
            self._write(by_layer[self.plan.source(layer)], layer, later, times)
        for segment in run[last + 1 :]:
            self._write(segment, None, later, times)

    def number(self, source: int, layer: int | None, later: int = 0) -> int:
        """The placed number of traced storage `source`, for the copy of its layer."""
        stage, slot, ordinal = self._home[source]
        if isinstance(slot, int) and layer is not None:
            slot = layer
        return self._new[(_later(stage, later), slot, ordinal)]

    def _write(self, segment: Segment, layer: int | None, later: int, times: int) -> None:
        log = self.log
        slot = self._slots[id(segment)] if layer is None else layer
        stage = _later(segment.stage, later)
        ordinal = 0
        events = segment.events
        if layer is None and segment.layer is None and self.plan.period:
            events = self._swept(segment, later)
        for event in events:
            if isinstance(event, tuple):
                log.events.append(~self._new[event])
            elif event >= 0:
                new = len(log.sizes)
                log.sizes.append(self.sizes[event])
                log.owners.append(self.owners[event])
                log.events.append(new)
                self._new[(stage, slot, ordinal)] = new
                ordinal += 1
            else:
                log.events.append(~self._new[self._target(~event, segment, layer, later)])
        for op, count in segment.ops.items():
            log.ops[op] += count * times

    def _swept(self, segment: Segment, later: int) -> list[Any]:
        """Events outside the layers, where a sweep of deaths over all layers is drawn out.

        Leaving autocast lets the cached weight casts go, layer by layer. A run of deaths that has
        one group for each traced layer, in order, becomes one with a group for each layer.
        """
        out: list[Any] = []
        at = 0
        events = segment.events
        while at < len(events):
            stop = at
            while stop < len(events) and self._layer_of_death(events[stop]) is not None:
                stop += 1
            if stop == at:
                out.append(events[at])
                at += 1
                continue
            out.extend(self._drawn_out(events[at:stop], segment, later))
            at = stop
        return out

    def _layer_of_death(self, event: int) -> int | None:
        if event >= 0:
            return None
        home = self._home[~event][1]
        return home if isinstance(home, int) else None

    def _drawn_out(self, deaths: list[int], segment: Segment, later: int) -> list[Any]:
        groups: list[tuple[int, list[tuple[str, int]]]] = []
        for death in deaths:
            stage, home, ordinal = self._home[~death]
            assert isinstance(home, int)
            if not groups or groups[-1][0] != home:
                groups.append((home, []))
            groups[-1][1].append((_later(stage, later), ordinal))
        order = [home for home, _ in groups]
        plan = self.plan
        if not any(plan.head <= home < plan.head + 2 * plan.period for home in order):
            return deaths
        up = list(range(plan.traced))
        if order not in (up, up[::-1]):
            raise NotPeriodic(f"{segment.stage} sweeps the layers in no order")
        by_layer = dict(groups)
        for offset in range(plan.period):
            if by_layer[plan.head + offset] != by_layer[plan.first_repeat + offset]:
                raise NotPeriodic(f"{segment.stage} sweeps layers that differ")
        layers = range(plan.num_layers)
        return [
            (stage, layer, ordinal)
            for layer in (layers if order == up else reversed(layers))
            for stage, ordinal in by_layer[plan.source(layer)]
        ]

    def _target(
        self, source: int, segment: Segment, layer: int | None, later: int
    ) -> tuple[str, Slot, int]:
        stage, home, ordinal = self._home[source]
        stage = _later(stage, later)
        if not isinstance(home, int) or not self.plan.period:
            return stage, home, ordinal
        if segment.layer is not None and layer is not None:
            distance = home - segment.layer
            if abs(distance) <= self.plan.period:
                return stage, layer + distance, ordinal
        if self.plan.head <= home < self.plan.head + 2 * self.plan.period:
            raise NotPeriodic(f"{segment.stage} refers to layer {home}")
        return stage, self.plan.moved(home), ordinal

    def _check(self) -> None:
        """The two traced periods must agree, or nothing may be placed."""
        for run in self._stages:
            by_layer = {s.layer: s for s in run if s.layer is not None}
            if not by_layer:
                continue
            if len(by_layer) != len([s for s in run if s.layer is not None]):
                raise NotPeriodic(run[0].stage)
            for offset in range(self.plan.period):
                one = by_layer.get(self.plan.head + offset)
                two = by_layer.get(self.plan.first_repeat + offset)
                if one is None or two is None or self._shape(one) != self._shape(two):
                    raise NotPeriodic(f"{run[0].stage} layer {self.plan.head + offset}")

    def _shape(self, segment: Segment) -> list[tuple[object, ...]]:
        shape: list[tuple[object, ...]] = []
        for event in segment.events:
            if event >= 0:
                shape.append((self.sizes[event], self.owners[event]))
                continue
            stage, home, ordinal = self._home[~event]
            if isinstance(home, int) and segment.layer is not None:
                distance = home - segment.layer
                near = abs(distance) <= self.plan.period
                shape.append((stage, ("+", distance) if near else home, ordinal))
            else:
                shape.append((stage, home, ordinal))
        return shape


def _later(stage: str, steps: int) -> str:
    """The stage's name `steps` optimizer steps later ("s1.m0.forward" is of step 1)."""
    if not steps or not stage.startswith("s"):
        return stage
    number, _, rest = stage[1:].partition(".")
    return f"s{int(number) + steps}.{rest}"


def _stages(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Segments grouped by stage, in order; segments of one stage and layer are one."""
    runs: list[list[Segment]] = []
    for segment in segments:
        if runs and runs[-1][0].stage == segment.stage:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return runs
