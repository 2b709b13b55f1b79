"""What a run was asked besides its recipe: limits, copies, what to do when things go wrong."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal

ON_OOM = ("stop", "adapt")
REPORTERS = ("trackio", "tensorboard", "swanlab", "wandb", "mlflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Plain values that live in `run.json`, so that a resume keeps them.

    `price_per_hour` and `budget` are in `currency`; `then` is the command to run at the end.
    """

    on_oom: str = "stop"
    reporters: tuple[str, ...] = ()
    currency: str = "CNY"
    price_per_hour: Decimal | None = None
    budget: Decimal | None = None
    mirror: str | None = None
    then: str | None = None
    smoke: bool = False
    merges: bool = True
    changed_ok: bool = False
    rehearsal: bool = False  # two steps on the longest rows only

    def document(self) -> dict[str, object]:
        """Plain data."""
        return {k: str(v) if isinstance(v, Decimal) else v for k, v in asdict(self).items()}

    @classmethod
    def of(cls, document: Mapping[str, object]) -> "Options":
        """From plain data; unknown keys of a newer version are left out."""
        values = {k: v for k, v in document.items() if k in cls.__dataclass_fields__}
        for key in ("price_per_hour", "budget"):
            if values.get(key) is not None:
                values[key] = Decimal(str(values[key]))
        values["reporters"] = tuple(values.get("reporters") or ())  # type: ignore[arg-type]
        return cls(**values)  # type: ignore[arg-type]
