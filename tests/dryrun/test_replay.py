"""Replays of a log written by hand."""

from loracle.domain.trace import Owner, Trace
from loracle.dryrun.allocator import AllocatorSettings
from loracle.dryrun.replay import KERNEL_MODULES_BYTES, owners_at, replay

MIB = 1 << 20
WEIGHT = Owner("model.layers.N.mlp", "parameter", "weight")
ACTIVATION = Owner("model.layers.N.mlp", "activation", "mm")
#  load: 30 MiB of weights and a 50 MiB copy that goes; forward: 24 and 40; backward: 64 for the 40
EVENTS = (0, 1, ~1, 2, 3, ~3, 4, ~4, ~2)
SIZES = (30 * MIB, 50 * MIB, 24 * MIB, 40 * MIB, 64 * MIB)
MARKS = ((0, "load"), (3, "forward"), (6, "backward"), (9, "end"))


def made(**changes):
    fields = {
        "events": EVENTS, "sizes": SIZES, "owners": (WEIGHT, ACTIVATION),
        "owner_of": (0, 0, 1, 1, 1), "marks": MARKS, "ops": (), "num_kernels": 0,
        "trainable_params": 7, **changes,
    }  # fmt: skip
    return Trace(**fields)


def test_peaks_start_after_the_load():
    seen = replay(made(), context_bytes=500 * MIB)
    assert seen.model_bytes == 30 * MIB
    assert (seen.peak_allocated, seen.peak_phase) == (118 * MIB, "backward")
    # the load's 50 MiB went back to the driver; 24 MiB and 40 MiB got segments, 64 a third
    assert seen.peak_reserved == (30 + 24 + 40 + 64) * MIB
    assert seen.peak_device == seen.peak_reserved + 500 * MIB + KERNEL_MODULES_BYTES
    assert seen.fits
    assert seen.timeline == (
        ("forward", 94 * MIB, 94 * MIB),
        ("backward", 118 * MIB, 158 * MIB),
    )


def test_owners_add_up_to_the_peak():
    seen = replay(made())
    assert dict(seen.owners) == {WEIGHT: 30 * MIB, ACTIVATION: 88 * MIB}
    assert sum(size for _, size in seen.owners) == seen.peak_allocated
    assert dict(owners_at(made(), 0)) == {WEIGHT: 30 * MIB}


def test_a_cap_that_holds_only_after_a_flush():
    seen = replay(made(), cap_bytes=120 * MIB)
    assert seen.fits
    assert seen.num_retries == 1  # the cached 40 MiB go back so that 64 fit
    assert seen.peak_reserved == 118 * MIB


def test_a_cap_that_does_not_hold():
    assert not replay(made(), cap_bytes=117 * MIB).fits


def test_managed_memory_is_outside_torch():
    plain, paged = replay(made()), replay(made(managed_bytes=10 * MIB))
    assert paged.peak_reserved == plain.peak_reserved
    assert paged.peak_device == plain.peak_device + 10 * MIB


def test_settings_reach_the_allocator():
    seen = replay(made(), settings=AllocatorSettings(expandable_segments=True))
    assert seen.peak_allocated == 118 * MIB
    assert seen.peak_reserved == 120 * MIB  # 20 MiB granules
