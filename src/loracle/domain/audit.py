"""What an audit says: checks with their evidence, the soak's curves, and the verdict.

An audit asks whether a rented machine is the card that was sold, whole, unshared, cool and ready
for a recipe. Every check carries what was found, what was expected and whose figure that is, what
it means for the recipe, and how to repeat it. All values are in base units (bytes, seconds,
FLOP/s, watts, degrees Celsius, MHz); sentences are message ids with numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loracle.domain.plan import Hint

SCHEMA = "loracle.audit/1"
STATUSES = ("pass", "warn", "fail", "unknown", "skipped")
GROUPS = ("identity", "share", "memory", "load", "links", "host", "software")
EXIT_CODES = {"pass": 0, "warn": 1, "fail": 2, "untested": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What one model of card shows to any process on it, and cannot easily fake.

    `memory_bytes` are the totals that NVML reports (ECC on and off, older drivers last),
    `modified_bytes` those of boards rebuilt with larger chips. `measured_flops_per_s` is the
    published spread of short-burst matmul rates in `dtype`, `peak_flops_per_s` the data sheet's.
    Cards of one `group` are the same silicon or product line: a variant rather than a fraud.
    """

    id: str
    name: str
    driver_names: tuple[str, ...]
    group: str
    family: str  # geforce, datacenter, workstation, mining
    device_ids: tuple[str, ...]  # PCI, four hex digits, vendor 10DE
    num_sms: int
    cores_per_sm: int
    compute_capability: tuple[int, int]
    memory_bytes: tuple[int, ...]
    modified_bytes: tuple[int, ...] = ()
    bus_bits: int
    bandwidth_bytes_per_s: float
    copy_share: float | None = None
    boost_mhz: int
    tdp_watts: float
    pcie_generation: int
    pcie_lanes: int
    dtype: str = "bfloat16"
    peak_flops_per_s: float | None = None
    measured_flops_per_s: tuple[float, float] | None = None
    fp64_flops_per_clock_sm: int
    fp64_tensor_cores: bool = False
    l2_bytes: int | None = None
    nvlink_links: int = 0
    nvlink_bytes_per_s: float | None = None  # one way, all links
    gpu_ids: tuple[str, ...] = ()  # rows of the card catalog that it may be
    note: str = ""
    own: Mapping[str, object] = field(default_factory=dict)  # our figures, units in the names
    sources: Mapping[str, str] = field(default_factory=dict)  # topic -> citation

    @property
    def fp64_flops_per_s(self) -> tuple[float, float]:
        """Lowest and highest FP64 matmul rate at the boost clock (tensor cores double it)."""
        vector = self.num_sms * self.boost_mhz * 1e6 * self.fp64_flops_per_clock_sm
        return vector, vector * (2 if self.fp64_tensor_cores else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question put to the machine, and its answer.

    `code` (`LRA-...`) is stable: scripts and refund claims match on it. `device` is the card's
    index, None for the machine. `by` says who can mend a failure: the provider or the renter.
    """

    code: str
    group: str
    status: str  # pass, warn, fail, unknown, skipped
    found: Hint
    expected: Hint | None = None
    source: str = ""  # of the expectation: a message id or a citation
    means: Hint | None = None
    repeat: str = ""  # a command line
    device: int | None = None
    by: str = "provider"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakCurve:
    """What one card did under steady load, sampled about once a second.

    Columns have one entry a sample, None where the card would not say. `events` are NVML's
    clock-event bits. `stopped` names why the soak ended early, if it did.
    """

    device: int
    seconds: tuple[float, ...]
    flops_per_s: tuple[float | None, ...]
    sm_mhz: tuple[float | None, ...] = ()
    celsius: tuple[float | None, ...] = ()
    memory_celsius: tuple[float | None, ...] = ()
    watts: tuple[float | None, ...] = ()
    events: tuple[int | None, ...] = ()
    stopped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescore:
    """The plan held against the measured card: `planned` and `measured` seconds and money.

    `speed_share` is measured over planned tokens a second. Money is in the plan's currency, as
    (low, likely, high) decimal texts, None where the plan has no price.
    """

    gpu_id: str
    speed_share: float
    planned_tokens_per_s: float
    measured_tokens_per_s: float
    planned_seconds: float
    measured_seconds: float
    planned_cost: str | None = None
    measured_cost: str | None = None
    currency: str | None = None
    limited_by: str = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What the report prints of one card; `uuid_hash` recognises it without naming it."""

    device: int
    name: str
    fingerprint_id: str | None
    uuid_hash: str | None
    device_id: str | None
    num_sms: int | None
    memory_bytes: int | None
    driver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The whole audit. `started_at` is UTC, ISO 8601; `sold` is the offer as the renter typed it.

    `machine_hash` is the same for two rentals of the same machine and says nothing else.
    `questions` are what no test can settle; `limits` what this audit cannot prove.
    """

    started_at: str
    seconds: float
    sold: str | None
    mode: str  # full, quick
    cards: tuple[CardFacts, ...]
    checks: tuple[Check, ...]
    verdict: Hint
    keep: str  # keep, careful, fix, return, untested
    machine_hash: str
    soak: tuple[SoakCurve, ...] = ()
    rescore: Rescore | None = None
    questions: tuple[Hint, ...] = ()
    limits: tuple[Hint, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    replayed: str | None = None
    measured: Mapping[str, object] = field(default_factory=dict)  # figures for the card's row

    def count(self, status: str) -> int:
        """How many checks ended so."""
        return sum(check.status == status for check in self.checks)

    @property
    def outcome(self) -> str:
        """pass, warn, fail or untested, by the worst check; untested without a card."""
        if self.keep == "untested":
            return "untested"
        return "fail" if self.count("fail") else "warn" if self.count("warn") else "pass"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 warn, 2 fail, 3 could not test."""
        return EXIT_CODES[self.outcome]
