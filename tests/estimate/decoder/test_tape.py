"""The toy autograd: what is saved, what is freed, and when, on graphs small enough to check."""

import pytest

from loracle.estimate.decoder import ops as op
from loracle.estimate.decoder.profile import profile_part, total, value
from loracle.estimate.decoder.tape import (
    Tape,
    Tensor,
    Weight,
    backward,
    checkpoint,
    leaf,
    like,
    widths,
)  # fmt: skip


def live(tape):
    """Bytes alive: (constant, per token, per token and position)."""
    sums = [0.0, 0.0, 0.0]
    for sign, _, size, _ in tape.events:
        for at in range(3):
            sums[at] += sign * size[at]
    return tuple(sums)


def test_a_tensor_dies_with_its_last_name():
    t = Tape(None)
    x = leaf(t, widths(10), "float32")
    assert live(t) == (0, 40, 0)
    y = op.scale(t, x)
    assert live(t) == (0, 80, 0)
    del x
    assert live(t) == (0, 40, 0)  # a product with a number saves nothing
    del y
    assert live(t) == (0, 0, 0)


def test_a_frozen_product_saves_nothing_a_trained_one_its_input():
    for trained, kept in ((False, 0), (True, 16)):
        t = Tape(None)
        weight = Weight(t, 8 * 3, "bfloat16", trained)
        x = leaf(t, widths(8), "bfloat16")
        y = op.linear(t, x, weight, 3)
        del x
        assert live(t) == (0, kept + 6, 0)
        del y


def test_autocast_casts_trained_weights_once():
    t = Tape("bfloat16")
    weight = Weight(t, 100, "float32", True)
    x = leaf(t, widths(10), "bfloat16")
    ys = [op.linear(t, x, weight, 10) for _ in range(3)]
    assert sum(size[0] for sign, kind, size, _ in t.events if kind == "cast" and sign > 0) == 200
    t.cast_cache.clear()
    del ys, x


def test_gradients_meet_in_a_new_tensor():
    t = Tape(None)
    x = leaf(t, widths(1), "float32")
    y = op.add(t, op.scale(t, x), op.scale(t, x))
    root = Tensor(None, y.elements, y.dtype, y.node)
    del x, y
    begin = t.mark()
    grad = backward(t, root, like(t, root))
    births = [size[1] for sign, _, size, _ in t.events[begin:] if sign > 0]
    # the incoming gradient, one through each branch, and their sum
    assert births == [4, 4, 4, 4]
    assert live(t) == (0, 4, 0)
    del grad


def test_dropout_keeps_a_mask_of_one_byte():
    t = Tape(None)
    x = leaf(t, widths(100), "bfloat16")
    y = op.dropout(t, x, 0.1)
    del x
    assert live(t) == (0, 200 + 100, 0)
    assert op.dropout(t, y, 0.0) is y


def test_rms_norm_saves_one_fp32_copy_and_a_number_a_row():
    t = Tape("bfloat16")
    x = leaf(t, widths(64), "bfloat16")
    y = op.rms_norm(t, x, Weight(t, 64, "bfloat16", False))
    del x
    assert live(t) == (0, 64 * 2 + 64 * 4 + 4, 0)
    assert y.dtype == "bfloat16"


def test_eager_attention_keeps_score_matrices():
    t = Tape("bfloat16")
    q, k, v = (leaf(t, widths(64), "bfloat16") for _ in range(3))
    out = op.eager_attention(t, q, k, v, 4, 4, 16, "bfloat16")
    # the fp32 softmax and its 16-bit copy, for four heads
    assert live(t)[2] == 4 * (4 + 2)
    del out


def test_fused_attention_keeps_none():
    t = Tape("bfloat16")
    q, k, v = (leaf(t, widths(64), "bfloat16") for _ in range(3))
    out = op.fused_attention(t, q, k, v, 4, 4, 16, 16, "flash")
    assert live(t) == (0, 4 * 128 + 4 * 4, 0)  # q, k, v, the output, one sum a row and head
    del out


def chain(t, weights):
    def run(x):
        for weight in weights:
            x = op.unary(t, op.linear(t, x, weight, 16))
        return x

    return run


def test_a_checkpoint_keeps_only_its_input_and_finds_the_rest_again():
    t = Tape(None)
    weights = [Weight(t, 256, "bfloat16", True) for _ in range(3)]
    run = chain(t, weights)
    x = leaf(t, widths(16), "bfloat16")
    y = checkpoint(t, run, x)
    root = Tensor(None, y.elements, y.dtype, y.node)
    del x, y
    assert live(t) == (0, 32, 0)
    begin = t.mark()
    grad = backward(t, root, like(t, root))
    assert all(weight.grad is not None for weight in weights)
    recomputed = sum(size[1] for sign, _, size, _ in t.events[begin:] if sign > 0)
    # recomputed: five of the six forward tensors (the last output is not needed again);
    # backward: the incoming gradient and two for each pair of operations
    assert recomputed == 32 * (5 + 1 + 6)
    assert live(t) == (3 * 512, 32, 0)
    del grad


def test_checkpointed_and_plain_leave_the_same_gradients():
    profiles = []
    for checkpointed in (False, True):
        t = Tape("bfloat16")
        weights = [Weight(t, 256, "bfloat16", True) for _ in range(4)]
        profiles.append(profile_part(t, 16, "bfloat16", chain(t, weights),
                                     checkpointed=checkpointed))  # fmt: skip
    plain, lean = profiles
    assert plain.gradients == lean.gradients == (4 * 512, 0, 0)
    assert lean.kept == (0, 32, 0)
    assert plain.kept == (0, 8 * 32, 0)

    def peak(one):
        return max(value(total(point), 100, 1) for point in one.backward)

    assert peak(lean) == pytest.approx(peak(plain), rel=0.1)
