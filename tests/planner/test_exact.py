"""The dry run's answer inside a plan."""

from loracle import words
from loracle.domain.trace import OWNER_KINDS
from loracle.planner.exact import TERM_OF_KIND


def test_every_owner_has_a_term_and_every_term_a_name():
    assert set(TERM_OF_KIND) == set(OWNER_KINDS)
    for name in set(TERM_OF_KIND.values()):
        assert words.has(f"memory.{name}"), name
