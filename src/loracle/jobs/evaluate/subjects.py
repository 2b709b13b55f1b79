"""The models that are compared, and how each is loaded so that only the weights differ."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loracle.errors import MachineError, MissingExtra, RunError
from loracle.jobs.merge.base import refuse_gone

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One model under test.

    `weights` is a model folder or hub id, `adapter` an adapter folder on top of it, `quant` how
    the weights are held (None, nf4, nf4-double, int8). `id` names it in results: base, adapter,
    merged, ...
    """

    id: str
    weights: str
    adapter: Path | None = None
    quant: str | None = None
    dtype: str = "bfloat16"

    @property
    def loads_like(self) -> tuple[object, ...]:
        """Subjects with the same value share one loading: base and adapter."""
        return (self.weights, self.quant, self.dtype)


def require_stack() -> None:
    """Raise MissingExtra where torch, transformers or peft is not installed; imports none."""
    for package in ("torch", "transformers", "peft"):
        if find_spec(package) is None:
            raise MissingExtra("train", package)


def choose_device() -> "torch.device":
    """The first CUDA card, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compute_dtype(device: "torch.device", wanted: str) -> str:
    """The wanted dtype on a card that computes in it; fp32 on a CPU, whose bf16 is slow."""
    import torch

    if device.type == "cpu":
        return "float32"
    capable = torch.cuda.get_device_capability(device) >= (8, 0)
    return wanted if wanted != "bfloat16" or capable else "float16"


def quiet_libraries() -> None:
    """No progress bars and hints of others between our lines."""
    import logging

    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


@contextmanager
def loaded(subjects: list[Subject], device: "torch.device") -> Iterator["Loaded"]:
    """Subjects of one loading, ready one after the other; memory is given back at the end."""
    import torch

    holder = Loaded(subjects, device)
    try:
        yield holder
    finally:
        holder.model = None
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def short_memory(message: str, *, hint: str, **values: object) -> Iterator[None]:
    """Turn the card's out of memory, in any spelling, into MachineError E055 with that message."""
    from loracle.jobs.train.faults import is_out_of_memory

    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise MachineError(message, code="E055", hint=hint, **values) from error


class Loaded:
    """Weights in memory, with the adapters of the subjects that share them."""

    def __init__(self, subjects: list[Subject], device: "torch.device") -> None:
        first = subjects[0]
        self.device = device
        quiet_libraries()
        self.model: Any = _load(first, device)
        for subject in subjects:
            if subject.adapter is not None:
                self.model = _with_adapter(self.model, subject)
        self.model.eval()

    @contextmanager
    def use(self, subject: Subject) -> Iterator["PreTrainedModel"]:
        """The model as this subject: its adapter on, or all adapters off."""
        if subject.adapter is not None:
            self.model.set_adapter(_peft_name(subject))
            yield self.model
        elif hasattr(self.model, "disable_adapter"):
            with self.model.disable_adapter():
                yield self.model
        else:
            yield self.model


def _load(subject: Subject, device: "torch.device") -> Any:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    refuse_gone(subject.weights)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            subject.weights,
            dtype=getattr(torch, subject.dtype),
            device_map={"": device} if device.type == "cuda" else None,
            **_quantised(subject),
        )
    except (OSError, ValueError) as error:
        raise RunError(
            "error.evaluate.load",
            code="E077",
            id=subject.id,
            path=subject.weights,
            cause=_first_line(error),
        ) from error
    model.generation_config = GenerationConfig()  # sampling defaults of the model must not leak in
    return model


def _with_adapter(model: Any, subject: Subject) -> Any:
    """The model with this subject's adapter loaded under the subject's id."""
    import warnings

    from peft import PeftModel

    from loracle.jobs.merge.adapter import check_adapter, check_finite
    from loracle.jobs.train.faults import is_out_of_memory

    assert subject.adapter is not None
    check_finite(check_adapter(subject.adapter)[1])
    folder, name = str(subject.adapter), _peft_name(subject)
    try:
        with warnings.catch_warnings():  # PEFT warns of parts that are missing; we refuse
            warnings.simplefilter("ignore", UserWarning)
            if not isinstance(model, PeftModel):
                model = PeftModel.from_pretrained(model, folder, adapter_name=name)
            loaded_keys = model.load_adapter(folder, adapter_name=name)
    except (RuntimeError, ValueError, TypeError, KeyError) as error:  # of another base or PEFT
        if is_out_of_memory(error):
            raise
        raise _no_fit(subject, _first_line(error)) from error
    missing = sorted(loaded_keys.missing_keys)
    strange = sorted(key for key in loaded_keys.unexpected_keys if "lora_" in key)
    if missing or strange:
        key = (missing or strange)[0].replace(f".{name}.", ".")
        raise RunError(
            "error.evaluate.missing_part" if missing else "error.evaluate.strange_part",
            code="E079", hint="hint.evaluate.adapter", path=folder, base=subject.weights, key=key,
            number=len(missing or strange),
        )  # fmt: skip
    return model


def _no_fit(subject: Subject, cause: str) -> RunError:
    return RunError(
        "error.evaluate.adapter", code="E079", hint="hint.evaluate.adapter",
        path=str(subject.adapter), base=subject.weights, cause=cause,
    )  # fmt: skip


def _peft_name(subject: Subject) -> str:
    """The adapter's name inside PEFT, which mixes up keys where it is a part of `lora_`."""
    return f"of-{subject.id}"


def _quantised(subject: Subject) -> dict[str, Any]:
    """As training stored the base; the compute dtype is the subject's."""
    if subject.quant is None:
        return {}
    import torch
    from transformers import BitsAndBytesConfig

    if subject.quant == "int8":
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    how = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=subject.quant == "nf4-double",
        bnb_4bit_compute_dtype=getattr(torch, subject.dtype),
    )
    return {"quantization_config": how}


def _first_line(error: Exception) -> str:
    """The first line that says something: a heading such as `Error(s) in loading:` does not."""
    lines = [one.strip() for one in str(error).splitlines() if one.strip()]
    telling = [one for one in lines if not one.endswith(":")]
    return (telling or lines or [type(error).__name__])[0]
