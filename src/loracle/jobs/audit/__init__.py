"""`loracle audit`: is this machine what was paid for. Sources, observations, judges.

A `Source` (the live machine, or a recording) answers questions; `observe` turns the answers into
plain frozen observations; `judge` turns those, with the card's fingerprint, into an AuditReport.
Nothing here changes a setting of the machine.
"""

from loracle.jobs.audit.judges.case import Case, Needs
from loracle.jobs.audit.judges.report import judge
from loracle.jobs.audit.observation import Observation
from loracle.jobs.audit.observe import Options, observe
from loracle.jobs.audit.replay import Replay, find_recording, load_recording, shipped

__all__ = [
    "Case", "Needs", "Observation", "Options", "Replay", "find_recording", "judge",
    "load_recording", "observe", "shipped",
]  # fmt: skip
