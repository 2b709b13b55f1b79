"""Traces on their way to a cache folder and back."""

import pytest

from loracle.dryrun.store import key, pack, unpack
from loracle.dryrun.trace import trace
from loracle.errors import EngineError


def test_a_trace_survives_the_way_to_bytes_and_back(make_setup):
    made = trace(make_setup("llama", layers=3))
    data = pack(made)
    assert unpack(data) == made
    assert len(data) < 200_000


@pytest.mark.parametrize("data", [b"", b"nonsense", pack.__doc__.encode()])
def test_broken_bytes_are_refused(data):
    with pytest.raises(EngineError):
        unpack(data)


def test_the_key_covers_what_the_trace_depends_on(make_setup):
    setup = make_setup("llama")
    assert key(setup, (9, 0)) == key(make_setup("llama"), (9, 0))
    others = [
        key(setup, (8, 0)),
        key(make_setup("llama", layers=8), (9, 0)),
        key(make_setup("llama", micro_batch=3), (9, 0)),
        key(make_setup("llama", lora={"dropout": 0.1}), (9, 0)),
        key(make_setup("falcon"), (9, 0)),
    ]
    assert len({key(setup, (9, 0)), *others}) == 6
