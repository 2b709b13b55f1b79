import math
from decimal import Decimal

import pytest

from loracle import words
from loracle.jobs.train.watch import Alarm, Expected, Reading, Watch, alarm_ids


def reading(step, **changes):
    values = {
        "step": step, "loss": 2.0 / (1 + step / 50), "grad_norm": 1.0, "tokens_per_s": 1000.0,
        "step_seconds": 1.0, "gpu_use": 0.95, "free_memory_share": 0.1,
    }  # fmt: skip
    return Reading(**values | changes)


def watch_over(readings, **expected):
    watch = Watch(Expected(num_steps=400, **expected))
    return [alarm for one in readings for alarm in watch.look(one)]


def ids(alarms):
    return [alarm.id for alarm in alarms]


def test_a_healthy_run_is_silent():
    assert watch_over([reading(n) for n in range(1, 400)], tokens_per_s_low=1000.0) == []


def test_three_steps_that_are_no_number_stop_the_run():
    alarms = watch_over([reading(1), *(reading(n, loss=math.nan) for n in (2, 3, 4))])
    assert [(one.id, one.stop) for one in alarms] == [("not_finite", False), ("not_finite", True)]


def test_two_do_not_and_the_count_starts_anew():
    bad = [reading(n, grad_norm=math.inf if n % 3 else 1.0) for n in range(1, 20)]
    assert not any(alarm.stop for alarm in watch_over(bad))


def test_a_jump_of_the_loss_is_said_once():
    steps = [reading(n) for n in range(1, 40)]
    steps += [reading(n, loss=9.0) for n in range(40, 45)]
    assert ids(watch_over(steps)) == ["exploding"]


def test_a_loss_that_does_not_move_is_flat_after_100_steps():
    steps = [reading(n, loss=2.0 + 0.01 * math.sin(n)) for n in range(1, 150)]
    alarms = watch_over(steps)
    assert ids(alarms) == ["flat"]
    assert alarms[0].values["step"] == 101


def test_a_loss_near_zero_is_not_flat_but_learned():
    assert watch_over([reading(n, loss=0.001) for n in range(1, 150)]) == []


def test_speed_under_the_plan_needs_twenty_steps_and_ten_percent():
    slow = [reading(n, tokens_per_s=880.0) for n in range(1, 40)]
    assert ids(watch_over(slow, tokens_per_s_low=1000.0)) == ["slow"]
    assert watch_over(slow[:19], tokens_per_s_low=1000.0) == []
    near = [reading(n, tokens_per_s=910.0) for n in range(1, 40)]
    assert watch_over(near, tokens_per_s_low=1000.0) == []


@pytest.mark.parametrize(
    ("fetch", "collate", "cause"), [(0.4, 0.1, "starved_disk"), (0.05, 0.3, "starved_workers")]
)
def test_a_card_that_waits_for_data_names_the_part(fetch, collate, cause):
    waiting = [
        reading(n, gpu_use=0.5, fetch_seconds=fetch, collate_seconds=collate) for n in range(1, 30)
    ]
    assert ids(watch_over(waiting)) == [cause]


def test_a_card_that_is_idle_without_waiting_wants_a_larger_micro_batch():
    idle = [reading(n, gpu_use=0.4, free_memory_share=0.6) for n in range(1, 30)]
    assert ids(watch_over(idle)) == ["idle_card"]


def test_throttling_counts_when_half_of_the_window_has_it():
    hot = [reading(n, throttled="thermal" if n % 2 else None) for n in range(1, 40)]
    assert ids(watch_over(hot)) == ["throttled_thermal"]
    assert watch_over([reading(n, throttled="thermal" if n % 4 == 0 else None)
                       for n in range(1, 40)]) == []  # fmt: skip


@pytest.mark.parametrize(
    ("change", "alarm"),
    [({"ecc_errors": 1}, "ecc"), ({"xid": 79}, "xid"), ({"foreign_bytes": 2**30}, "shared")],
)
def test_faults_of_the_machine_are_said_at_once_and_once(change, alarm):
    assert ids(watch_over([reading(1), *(reading(n, **change) for n in range(2, 9))])) == [alarm]


def test_an_alarm_returns_after_it_had_gone():
    steps = [reading(1, foreign_bytes=1), reading(2), reading(3, foreign_bytes=1)]
    assert ids(watch_over(steps)) == ["shared", "shared"]


def test_money_is_watched_ahead_and_stops_at_the_budget():
    steps = [reading(n, spent=Decimal(n) / 10) for n in range(1, 120)]
    alarms = watch_over(steps, budget=Decimal(10), currency="CNY")
    assert alarms[0] == Alarm(
        "will_cost_more", {"amount": Decimal("40.0"), "budget": Decimal(10), "currency": "CNY"}
    )
    assert alarms[1].id == "over_budget"
    assert alarms[1].stop
    assert alarms[1].values["amount"] == Decimal(10)


def test_every_alarm_has_its_sentence_and_its_hint():
    for name in alarm_ids():
        assert words.has(f"watch.{name}"), name
        assert words.has(f"watch.{name}_hint"), name


def test_tokenising_that_takes_a_good_part_of_the_job_is_said_once():
    """120 s before 400 steps of a second: 23 %; over 2,000 steps it would be 6 %."""
    steps = [reading(n) for n in range(1, 40)]
    alarms = watch_over(steps, data_seconds=120.0)
    assert ids(alarms) == ["starved_tokenising"]
    assert alarms[0].values["share"] == pytest.approx(120 / 520)
    watch = Watch(Expected(num_steps=2000, data_seconds=120.0))
    assert [alarm for one in steps for alarm in watch.look(one)] == []
