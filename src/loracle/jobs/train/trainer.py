"""TRL's SFTTrainer with three changes: a plain loss, atomic checkpoints, a clean way to stop.

- The loss asks TRL's fused head for log-probabilities only; entropy and accuracy, which TRL
  computes at every micro-step, cost kernels and three waits for the card. A mixture of experts
  gets no load-balancing loss: adapters leave the router alone, and the router's logits of every
  layer would be memory that the plan does not count.
- A checkpoint is written beside, hashed and renamed (`checkpoints.finish`). Only what a resume
  needs goes in: adapter, optimizer, scheduler, RNG, trainer state.
- Out of memory, a stop request or a reclaimed machine in the middle of a step leave by
  `Interrupted`. Weights and optimizer are then those of the last whole step; the RNG state is kept
  from there too, so that a resume repeats the step bit by bit.
"""

import pickle
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import SFTConfig, SFTTrainer
from trl.trainer.utils import add_fused_lm_head

from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.errors import RunError
from loracle.jobs.train import checkpoints
from loracle.jobs.train.collate import Collator
from loracle.jobs.train.faults import is_disk_fault, is_out_of_memory
from loracle.jobs.train.model import cast_adapters
from loracle.jobs.train.reporters import guard
from loracle.jobs.train.states import page_again, rng_states, set_rng_states
from loracle.jobs.train.templates import IGNORED

_NEVER = 2**31


class Interrupted(Exception):
    """Leave the training loop now; `reason` is stop, terminated, budget or out_of_memory."""

    def __init__(self, reason: str, phase: str = "") -> None:
        super().__init__(reason)
        self.reason, self.phase = reason, phase


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRules:
    """Where checkpoints go, how many stay, what their manifests say."""

    folder: Path
    keep: int
    recipe_hash: str
    on_saved: Callable[[checkpoints.Checkpoint, list[int]], None]
    on_rng_lost: Callable[[str], None]


class LoracleTrainer(SFTTrainer):
    """See the module; rows come tokenised, and `flat` says how the collator lays them out."""

    def __init__(
        self,
        model: Any,
        setup: TrainingSetup,
        args: SFTConfig,
        *,
        tokenizer: Any,
        pad_token_id: int,
        train_rows: Any,
        eval_rows: Any,
        flat: bool,
        rules: SaveRules,
        callbacks: list[TrainerCallback],
        on_reporter_failed: Callable[[str, str], None],
    ) -> None:
        collator = Collator(pad_token_id, flat)
        super().__init__(
            model=model,
            args=args,
            data_collator=collator,  # type: ignore[arg-type]
            train_dataset=train_rows,
            eval_dataset=eval_rows,
            processing_class=tokenizer,
            callbacks=callbacks,
        )
        cast_adapters(self.model, setup)  # TRL casts those on a quantised base to bf16 always
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        add_fused_lm_head(base, outputs=("log_probs",))
        self.remove_callback(PrinterCallback)  # the run has its own events
        kinds = tuple(get_reporting_integration_callbacks(self.args.report_to))
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, kinds):
                guard(callback, on_reporter_failed)
        self.rules = rules
        self._setup = setup
        self.phase = "start"
        self.finite = True  # false while the loss is not a number: such weights are never saved
        self._collator = collator
        self._rng_of_step: dict[str, Any] | None = None
        self._tokens, self._data_seconds = 0, 0.0
        # Several processes must agree on a loss each step; one alone need not read it at once.
        self.holds_losses = self.args.logging_steps > 1
        self._step_loss: torch.Tensor | None = None
        self._eval_loss = torch.zeros(2, dtype=torch.float64, device=self.args.device)

    def compute_loss(  # type: ignore[override]
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Mean negative log-likelihood over the labelled tokens of the whole optimizer step."""
        assert not return_outputs  # prediction_loss_only
        labels = inputs["labels"][:, 1:]
        count = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        if self.args.device.type == "cuda":
            total = -model(**inputs, use_cache=False, fused_lm_head=True).log_probs.sum()
        else:
            total = _loss_of_labelled(model, inputs, labels)
        if not self.model.training:
            self._eval_loss += torch.stack([total.detach().double(), torch.as_tensor(count)])
        loss = total / torch.as_tensor(count).clamp(min=1)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # DDP averages what must be summed
        return loss

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Trainer's, timed and counted."""
        began = time.perf_counter()
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        self._data_seconds += time.perf_counter() - began
        self._tokens += sum(batch["input_ids"].numel() for batch in batches)
        return batches, num_items

    def take_step_counts(self) -> tuple[int, float, float]:
        """Tokens over all processes, seconds fetching and seconds collating since the last call."""
        tokens = self._tokens * self.args.world_size
        collate = self._collator.seconds
        fetch = max(0.0, self._data_seconds - collate)
        self._tokens, self._data_seconds, self._collator.seconds = 0, 0.0, 0.0
        return tokens, fetch, collate

    def take_step_loss(self) -> torch.Tensor:
        """The loss of the step that has just ended, summed over its micro-steps, unread."""
        loss, self._step_loss = self._step_loss, None
        assert loss is not None
        return loss.detach()

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One forward and backward; no memory for it leaves by Interrupted."""
        self.phase = "step"
        try:
            loss = super().training_step(*args, **kwargs)
            if self.holds_losses:
                self._step_loss = loss if self._step_loss is None else self._step_loss + loss
            return loss
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        raise Interrupted("out_of_memory", "step")

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """TRL's, without a trace in the RNG (a resume does not repeat an evaluation)."""
        states = rng_states()
        try:
            return super().evaluate(*args, **kwargs)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        finally:
            set_rng_states(states)
        raise Interrupted("out_of_memory", "evaluation")

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Trainer's, with the loss over all tokens: its own is a mean of the batches' means."""
        self._eval_loss.zero_()
        output = super().evaluation_loop(*args, **kwargs)
        total, count = self.accelerator.reduce(self._eval_loss).tolist()
        name = f"{kwargs.get('metric_key_prefix', 'eval')}_loss"
        if count and name in output.metrics:
            output.metrics[name] = total / count
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's own: TRL would add the metrics that are not computed here."""
        self._metrics["train"].clear()
        self._metrics["eval"].clear()
        Trainer.log(self, logs, start_time)

    def remember_rng(self) -> None:
        """Keep the RNG states of a finished step, for a save that happens later."""
        self._rng_of_step = rng_states()

    def save_interrupted(self) -> None:
        """Write the checkpoint of the last whole step from the middle of the next one."""
        if self._rng_of_step is not None:
            set_rng_states(self._rng_of_step)
        self.model.zero_grad(set_to_none=True)
        self._save_checkpoint(self.model, None)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Trainer's files, written beside and renamed; RunError E064 when the disk refuses."""
        if not self.finite:
            return
        folder = self.rules.folder
        written = checkpoints.writing_path(folder)
        try:
            if self.args.should_save:
                shutil.rmtree(written, ignore_errors=True)
                written.mkdir()
            self.accelerator.wait_for_everyone()
            Trainer._save_checkpoint(self, model, trial)  # TRL's writes a model card into each
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self._finish(written)
        except Exception as error:
            shutil.rmtree(written, ignore_errors=True)
            if not is_disk_fault(error):
                raise
            raise RunError(
                "error.train.save", code="E064", hint="hint.train.save", path=str(folder),
                step=self.state.global_step, cause=str(error).strip().splitlines()[0],
            ) from error  # fmt: skip

    def _finish(self, written: Path) -> None:
        step = self.state.global_step
        saved = checkpoints.finish(
            written / f"{PREFIX_CHECKPOINT_DIR}-{step}",
            self.rules.folder,
            step,
            recipe_hash=self.rules.recipe_hash,
            world_size=self.args.world_size,
            micro_batch=self.args.per_device_train_batch_size,
            grad_accum=self.args.gradient_accumulation_steps,
        )
        shutil.rmtree(written, ignore_errors=True)
        gone = checkpoints.keep_newest(
            self.rules.folder, self.rules.keep, self.state.best_global_step
        )
        self.rules.on_saved(saved, gone)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Trainer's; PEFT loads 16-bit adapters as fp32, which would be another run's numbers."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        cast_adapters(model if model is not None else self.model, self._setup)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Trainer's; a paged optimizer's states are paged again."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            page_again(self.optimizer)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Trainer's; a state that other versions pickled is left out, and said to be."""
        try:
            super()._load_rng_state(checkpoint)
        except (pickle.UnpicklingError, ModuleNotFoundError, AttributeError) as error:
            self.rules.on_rng_lost(str(error).strip().splitlines()[0])

    def _get_output_dir(self, trial: Any) -> str:
        return str(checkpoints.writing_path(self.rules.folder))

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Weights only: the tokenizer does not change and would be written again each time."""
        assert output_dir is not None
        model = self.accelerator.unwrap_model(self.model)
        options = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
        model.save_pretrained(output_dir, state_dict=state_dict, **options)


def _loss_of_labelled(model: Any, inputs: dict[str, Any], labels: torch.Tensor) -> torch.Tensor:
    """Summed loss without a card, where TRL's head would score every position.

    Only columns with a label in some row are projected: on short answers a quarter of the work.
    """
    columns = (labels != IGNORED).any(0).nonzero().flatten()
    rest = {key: value for key, value in inputs.items() if key != "labels"}
    logits = model(**rest, use_cache=False, logits_to_keep=columns).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels[:, columns].flatten(), ignore_index=IGNORED,
        reduction="sum",
    )  # fmt: skip


def log_every(setup: TrainingSetup, *, on_card: bool) -> int:
    """Each step, or, on one card, when the pulse says so (see `jobs/train/pulse.py`)."""
    return _NEVER if on_card and setup.num_gpus == 1 else 1


def training_arguments(
    recipe: Recipe,
    setup: TrainingSetup,
    *,
    folder: Path,
    has_eval: bool,
    on_card: bool,
    reporters: tuple[str, ...] = (),
    run_name: str = "",
) -> SFTConfig:
    """The recipe and the setup in SFTConfig's words; saving and stopping are ours to decide."""
    training = recipe.training
    known = SFTConfig.__dataclass_fields__
    recompute = "activation" if "activation_checkpointing" in known else "gradient"
    checkpointing: dict[str, Any] = {f"{recompute}_checkpointing": setup.gradient_checkpointing}
    if setup.gradient_checkpointing:
        kwargs: dict[str, Any] = {"use_reentrant": False}
        if setup.checkpoint_every > 1:
            kwargs["every_n_layers"] = setup.checkpoint_every
        checkpointing[f"{recompute}_checkpointing_kwargs"] = kwargs
    every = recipe.evaluation.every_steps
    return SFTConfig(
        output_dir=str(folder),
        run_name=run_name or None,
        per_device_train_batch_size=setup.micro_batch,
        gradient_accumulation_steps=setup.grad_accum,
        per_device_eval_batch_size=setup.eval_micro_batch or setup.micro_batch,
        num_train_epochs=recipe.epochs,
        max_steps=training.steps or -1,
        learning_rate=training.learning_rate or (2e-5 if setup.method == "full" else 2e-4),
        lr_scheduler_type=training.lr_scheduler,
        warmup_steps=training.warmup_share,
        weight_decay=training.weight_decay,
        max_grad_norm=setup.max_grad_norm,
        optim=_optimizer(setup, on_card=on_card),
        bf16=setup.autocast == "bfloat16",
        fp16=setup.autocast == "float16",
        use_cpu=not on_card,
        logging_steps=log_every(setup, on_card=on_card),
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=recipe.save.every_steps or _NEVER,
        eval_strategy="no" if not has_eval else "steps" if every else "epoch",
        eval_steps=every,
        metric_for_best_model="loss" if has_eval else None,
        greater_is_better=False if has_eval else None,
        prediction_loss_only=True,
        report_to=list(reporters),
        seed=training.seed,
        data_seed=training.seed,
        dataloader_num_workers=0,
        dataloader_pin_memory=on_card,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        packing=False,
        padding_free=False,
        remove_unused_columns=False,
        router_aux_loss_coef=0.0,
        disable_tqdm=True,
        project="loracle",  # Trackio's
        ddp_find_unused_parameters=False,
        **checkpointing,
    )


def _optimizer(setup: TrainingSetup, *, on_card: bool) -> str:
    """bitsandbytes' optimizers need a card; on a CPU the plain one computes the same update."""
    if not on_card and "bit" in setup.optimizer:
        return "adamw_torch"
    return setup.optimizer
