"""A GPU that idles at 50 W and takes 350 W at full use, on a host that reads its counter late."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from monitor.facts.readings import EndedProcess, UseSource
from monitor.usage.policy.accounting import ProcessUses
from monitor.usage.policy.attribution import EnergyMeter
from tests.builders import NOW, gpu, gpu_uuid, process

IDLE_W, FULL_W = 50.0, 300.0


def errors(lateness_s: float, *, has_power: bool = True) -> tuple[float | None, dict[str, float]]:
    """The learned idle power, and the relative error of a 5 % user and of one in bursts."""
    chance, meter = random.Random(1), EnergyMeter()
    counter_mj = read_at = 0.0
    charged = dict.fromkeys(("small", "big"), 0.0)
    true = dict(charged)
    for second in range(1, 961):
        big = 0.5 * (second % 10 < 3) if second > 60 else 0.0
        small = 0.05 if second > 60 else 0.0
        power = IDLE_W + FULL_W * (big + small)
        now = second + chance.random() * lateness_s
        counter_mj += power * (now - read_at) * 1000
        read_at = now
        reading = gpu(
            energy_mj=round(counter_mj),
            power_w=power if has_power else None,
            utilization_pct=100 * (big + small),
        )
        joules = meter.share(NOW + timedelta(seconds=second), reading, {1: small, 2: big}, 6.0)
        if second > 60:
            for pid, name, busy in ((1, "small", small), (2, "big", big)):
                charged[name] += joules[pid] or 0.0
                true[name] += FULL_W * busy
    return meter.idle_w, {name: charged[name] / true[name] - 1 for name in true}


@pytest.mark.parametrize("lateness_s", [0.0, 0.02, 0.1, 0.3, 0.6])
def test_energy_is_within_three_percent_however_late_the_counter_is_read(lateness_s: float) -> None:
    idle_w, found = errors(lateness_s)
    assert idle_w == pytest.approx(IDLE_W, abs=0.1)
    assert max(abs(error) for error in found.values()) < 0.03


def test_without_power_readings_the_counter_over_a_long_rest_gives_the_idle_power() -> None:
    idle_w, found = errors(0.1, has_power=False)
    assert idle_w == pytest.approx(IDLE_W, rel=0.02)
    assert max(abs(error) for error in found.values()) < 0.08


def test_one_wrong_reading_does_not_move_the_idle_power() -> None:
    meter = EnergyMeter()
    for second in range(60):
        power = 3.0 if second == 30 else 50.0
        reading = gpu(power_w=power, utilization_pct=0.0)
        meter.share(NOW + timedelta(seconds=second), reading, {1: 0.0}, 6.0)
    assert meter.idle_w == 50.0


def test_the_last_part_of_a_process_gets_its_energy() -> None:
    uses, energy_mj = ProcessUses(), 0
    uses.take(NOW, [gpu(0, energy_mj=0)], [process(1, created_at=NOW)], {})
    for second in (2, 4):
        energy_mj += 700_000
        busy = {(gpu_uuid(0), 1): 2.0}
        now = NOW + timedelta(seconds=second)
        uses.take(now, [gpu(0, energy_mj=energy_mj, utilization_pct=100)], [process(1)], busy)
    last = EndedProcess(
        gpu_uuid=gpu_uuid(0), pid=1, busy_s=1.5, source=UseSource.PROCESS_UTILIZATION
    )
    energy_mj += 525_000
    now = NOW + timedelta(seconds=6)
    uses.take(now, [gpu(0, energy_mj=energy_mj, utilization_pct=75)], [], {}, [last])
    (use,) = uses.open.values()
    assert use.ended_at == now
    assert use.total.sm_s == 5.5
    assert use.total.joules == pytest.approx(350 * 5.5, rel=0.3)
    assert (use.total.joules or 0) > 1400
