"""The case that is judged: what was seen, what was sold, what the recipe needs."""

from collections.abc import Mapping
from dataclasses import dataclass

from loracle.catalog.fingerprints import SoldAs, by_device_id, by_driver_name
from loracle.domain.audit import Check, Fingerprint
from loracle.domain.plan import Hint
from loracle.jobs.audit.observation import Card, Observation

COMMAND = "loracle audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the recipe asks of the machine, in base units; None where there is no recipe."""

    device_bytes: float | None = None
    disk_bytes: float | None = None
    num_gpus: int = 1
    moves_weights: bool = False  # sharded or offloaded: the link is on the path of each step
    num_workers: int = 0
    quantised: bool = True
    card_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that a judge may look at."""

    seen: Observation
    sold: SoldAs | None = None
    needs: Needs | None = None
    quick: bool = False

    def claimed(self, card: Card) -> Fingerprint | None:
        """The card that this one says it is: by device id, else by name."""
        known = by_device_id(card.device_id)
        return known or by_driver_name(card.name, card.total_bytes)

    def expected(self, card: Card) -> Fingerprint | None:
        """The card that it is judged against: the one sold, else the one it says it is."""
        claimed = self.claimed(card)
        if self.sold is None or not self.sold.fingerprints:
            return claimed
        candidates = self.sold.fingerprints
        if claimed in candidates:
            return claimed
        total = card.total_bytes or 0
        return min(
            candidates,
            key=lambda one: (
                one.group != (claimed.group if claimed else None),
                min(abs(known - total) for known in one.memory_bytes),
            ),
        )

    @property
    def part_sold(self) -> bool:
        """Whether the offer says a part of a card."""
        return self.sold is not None and self.sold.part


def say(message: str, **values: object) -> Hint:
    """A sentence of the audit: a message id under `audit.` and its numbers."""
    return Hint(id=f"audit.{message}", values=values)


def unknown(
    code: str, group: str, card: Card | None, keys: tuple[str, ...], refusals: Mapping[str, str]
) -> Check:
    """A check that could not be made, with the reason that the source gave."""
    reasons = [f"{key}: {refusals[key]}" for key in keys if key in refusals]
    return Check(
        code=code,
        group=group,
        status="unknown",
        found=say("found.unknown", reason="; ".join(reasons)) if reasons else say("found.silent"),
        device=card.index if card else None,
    )


def skipped(code: str, group: str, card: Card | None, why: str) -> Check:
    """A check that does not apply here; `why` is a message id under audit.skipped."""
    return Check(
        code=code,
        group=group,
        status="skipped",
        found=say(f"skipped.{why}"),
        device=card.index if card else None,
    )


def worst(*statuses: str) -> str:
    """The worst of several outcomes of one question."""
    order = ("fail", "warn", "unknown", "pass", "skipped")
    return min(statuses, key=order.index)
