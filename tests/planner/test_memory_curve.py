"""The curve of a step and its owners, on a trace small enough to add up by hand."""

from loracle.domain.trace import Owner, Trace
from loracle.planner.memory_curve import memory_curve

WEIGHTS = Owner("layers.N", "parameter", "weight")
ACTIVATION = Owner("layers.N", "activation", "mm")


def tiny():
    """1 MiB of weights stays; two steps of 2 MiB forward, 4 MiB more backward, all freed."""
    mib = 2**20
    return Trace(
        events=(0, 1, 2, ~2, ~1, 3, ~3, 4, 5, ~5, ~4, 6, ~6),
        sizes=(mib, 2 * mib, 4 * mib, mib // 2, 2 * mib, 4 * mib - 100, mib // 2),
        owners=(WEIGHTS, ACTIVATION),
        owner_of=(0, 1, 1, 1, 1, 1, 1),
        marks=((0, "load"), (1, "forward"), (2, "backward"), (5, "optimizer"),
               (7, "forward"), (8, "backward"), (11, "optimizer"), (13, "end")),
        ops=(), num_kernels=0, trainable_params=0,
    )  # fmt: skip


def test_the_last_step():
    curve = memory_curve(tiny(), points=6)
    mib = 2**20
    assert [stretch.phase for stretch in curve.stretches] == ["forward", "backward", "optimizer"]
    assert curve.resident_bytes == mib
    assert curve.points == (3 * mib, 7 * mib, 3 * mib, mib, 1.5 * mib, mib)
    assert curve.peak_bytes == 7 * mib  # 4 MiB - 100 bytes is rounded up to 512 bytes
    assert curve.owners == ((ACTIVATION, 6 * mib - 100), (WEIGHTS, mib))
    assert [stretch.peak_bytes for stretch in curve.stretches] == [3 * mib, 7 * mib, 1.5 * mib]


def test_owners_add_up_to_the_peak():
    curve = memory_curve(tiny())
    assert sum(size for _, size in curve.owners) <= curve.peak_bytes
    assert curve.peak_bytes == max(curve.points)
