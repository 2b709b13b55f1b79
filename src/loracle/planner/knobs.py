"""Which knob to turn when a job does not fit, and what that costs.

The order is the field's (claim A-T2): what is lost last comes first. First what changes nothing
that is learned (recomputation, a loss without whole logits), then the sequence length, the
micro-batch, the rank, the optimizer, the MLP adapters, at last a quantised base. Each knob is
tried alone, then on top of those before it: first all at their mildest, then at their strongest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from loracle.domain.plan import DataFacts
from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.planner.fit import Choice, choose, usual_setup
from loracle.planner.laws import Laws
from loracle.planner.place import Place
from loracle.planner.work import Workload, cut_share_at, workload

SHORTEST_SEQ_LEN = 256
SMALLEST_RANK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One or more knobs turned, and the choice that then fits.

    `assignments` are recipe keys with their new values, as `--set` takes them. `slowdown` is the
    training time over that of the same setting unturned on this place, 1.0 where nothing is lost.
    """

    knobs: tuple[str, ...]
    assignments: tuple[tuple[str, str], ...]
    choice: Choice
    work: Workload
    slowdown: float
    cut_share: float


@dataclass(frozen=True, slots=True)
class _State:
    setup: TrainingSetup
    seq_len: int


def turn_until_it_fits(
    recipe: Recipe, setup: TrainingSetup, place: Place, data: DataFacts, laws: Laws
) -> Turn | None:
    """The first knob, or row of knobs, with which `setup` fits on `place`; None where none does."""
    start = _State(setup, recipe.training.seq_len)
    for knobs, state in (*_alone(start), *_together(start, mildest=True), *_together(start)):
        found = _try(recipe, knobs, start, state, place, data, laws)
        if found is not None:
            return found
    return None


def _alone(start: _State) -> Iterator[tuple[tuple[str, ...], _State]]:
    for name, settings in KNOBS:
        for state in settings(start):
            yield (name,), state


def _together(start: _State, *, mildest: bool = False) -> Iterator[tuple[tuple[str, ...], _State]]:
    """Each knob on top of those before it, at its mildest or its strongest setting."""
    state: _State = start
    turned: tuple[str, ...] = ()
    for name, settings in KNOBS:
        offered = list(settings(state))
        if not offered:
            continue
        state, turned = offered[0 if mildest else -1], (*turned, name)
        yield turned, state


def _asked(recipe: Recipe) -> int | None:
    return None if recipe.training.micro_batch == "auto" else recipe.training.micro_batch


def _try(
    recipe: Recipe,
    knobs: tuple[str, ...],
    start: _State,
    state: _State,
    place: Place,
    data: DataFacts,
    laws: Laws,
) -> Turn | None:
    shorter = _at_length(recipe, state.seq_len)
    work = workload(shorter, data, packing=state.setup.packing)
    setup = state.setup.with_changes(seq_len=work.peak_len)
    asked = None if "micro_batch" in knobs else _asked(recipe)
    choice = choose(setup, place, work, laws, micro_batch=asked)
    if choice is None or choice.fit not in ("fits", "tight") or choice.speed is None:
        return None
    return Turn(
        knobs=knobs,
        assignments=tuple(_assignments(start, state, choice)),
        choice=choice,
        work=work,
        slowdown=_slowdown(recipe, start, choice, work, place, data, laws),
        cut_share=cut_share_at(data, state.seq_len),
    )


def _slowdown(
    recipe: Recipe,
    start: _State,
    choice: Choice,
    work: Workload,
    place: Place,
    data: DataFacts,
    laws: Laws,
) -> float:
    """Training time with the knobs over the time without, had the card the memory for that."""
    before = workload(recipe, data, packing=start.setup.packing)
    unturned = usual_setup(start.setup, place, before).with_changes(
        num_gpus=choice.setup.num_gpus,
        parallel=choice.setup.parallel,
        grad_accum=max(1, choice.setup.grad_accum * choice.setup.micro_batch
                       // start.setup.micro_batch),
    )  # fmt: skip
    assert choice.speed is not None
    without = laws.speed(unturned, place.gpu, place.around).step_seconds.likely * before.num_steps
    return choice.speed.step_seconds.likely * work.num_steps / without


def _at_length(recipe: Recipe, seq_len: int) -> Recipe:
    if seq_len == recipe.training.seq_len:
        return recipe
    training = recipe.training.model_copy(update={"seq_len": seq_len})
    return recipe.model_copy(update={"training": training})


def _checkpointing(state: _State) -> Iterator[_State]:
    setup = state.setup
    if not setup.gradient_checkpointing or setup.checkpoint_every > 1:
        turned = setup.with_changes(gradient_checkpointing=True, checkpoint_every=1)
        yield replace(state, setup=turned)


def _fused_head(state: _State) -> Iterator[_State]:
    setup = state.setup
    if not setup.fused_head:
        lora = setup.lora and replace(setup.lora, dtype="bfloat16")
        turned = setup.with_changes(stack="loracle", kbit_upcast=False, lora=lora)
        yield replace(state, setup=turned)


def _seq_len(state: _State) -> Iterator[_State]:
    seq_len = state.seq_len // 2
    while seq_len >= SHORTEST_SEQ_LEN:
        yield replace(state, seq_len=seq_len)
        seq_len //= 2


def _micro_batch(state: _State) -> Iterator[_State]:
    setup = state.setup
    if setup.micro_batch > 1:
        accum = setup.grad_accum * setup.micro_batch
        yield replace(state, setup=setup.with_changes(micro_batch=1, grad_accum=accum))


def _rank(state: _State) -> Iterator[_State]:
    lora = state.setup.lora
    rank = lora.rank // 2 if lora else 0
    while lora and rank >= SMALLEST_RANK:
        smaller = replace(lora, rank=rank, alpha=lora.alpha * rank / lora.rank)
        yield replace(state, setup=state.setup.with_changes(lora=smaller))
        rank //= 2


def _optimizer(state: _State) -> Iterator[_State]:
    if state.setup.optimizer != "paged_adamw_8bit":
        yield replace(state, setup=state.setup.with_changes(optimizer="paged_adamw_8bit"))


def _attention_only(state: _State) -> Iterator[_State]:
    lora = state.setup.lora
    if lora and lora.targets not in ("attention", state.setup.model.targets("attention")):
        fewer = replace(lora, targets="attention")
        yield replace(state, setup=state.setup.with_changes(lora=fewer))


def _quantised(state: _State) -> Iterator[_State]:
    if state.setup.method == "lora":
        yield replace(state, setup=state.setup.with_changes(method="qlora", quant="nf4-double"))


KNOBS: tuple[tuple[str, Callable[[_State], Iterator[_State]]], ...] = (
    ("checkpointing", _checkpointing),
    ("fused_head", _fused_head),
    ("seq_len", _seq_len),
    ("micro_batch", _micro_batch),
    ("rank", _rank),
    ("optimizer", _optimizer),
    ("attention_only", _attention_only),
    ("qlora", _quantised),
)


def _assignments(start: _State, state: _State, choice: Choice) -> Iterator[tuple[str, str]]:
    """The recipe keys that make the turned setup out of the original one."""
    old, new = start.setup, choice.setup
    if state.seq_len != start.seq_len:
        yield "training.seq_len", str(state.seq_len)
    if (old.gradient_checkpointing, old.checkpoint_every) != (
        new.gradient_checkpointing,
        new.checkpoint_every,
    ):
        yield "training.gradient_checkpointing", "true"
    if old.stack != new.stack:
        yield "stack", new.stack
    if old.micro_batch != new.micro_batch:
        yield "training.micro_batch", str(new.micro_batch)
    if old.lora and new.lora and old.lora.rank != new.lora.rank:
        yield "lora.rank", str(new.lora.rank)
    if old.optimizer != new.optimizer:
        yield "training.optimizer", new.optimizer
    if old.lora and new.lora and old.lora.targets != new.lora.targets:
        yield "lora.targets", "attention"
    if old.method != new.method:
        yield "method", new.method
