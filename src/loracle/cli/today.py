"""Today's date: the one clock that a plan reads, so that a screen can be printed again."""

import os
from datetime import UTC, datetime


def today() -> str:
    """Today as an ISO date in UTC; SOURCE_DATE_EPOCH, where set, says which day that is."""
    stamp = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(stamp), UTC) if stamp.isdigit() else datetime.now(UTC)
    return now.date().isoformat()
