from __future__ import annotations

import pytest

from monitor.facts.readings import ProcessReading
from monitor.incidents.facts import SUSTAINED
from tests.builders import process
from tests.monitor.hog_traces import Processes, Trace, policies


def hopper(stay_min: float, *, leaves: bool) -> Processes:
    """98 % of one GPU of four, on another one after `stay_min`; or idle on the others."""

    def seen(minute: float) -> list[ProcessReading]:
        now = int(minute / stay_min) % 4
        return [
            process(pid=100 + on, on=on, sm_pct=98.0 if on == now else 0.0)
            for on in range(4)
            if on == now or not leaves
        ]

    return seen


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("minutes", [2.0, 10.0])
def test_use_that_moves_between_gpus_each_minute_is_sustained_use(
    leaves: bool, minutes: float
) -> None:
    trace = Trace(policies(sustained_minutes=minutes), gpus=4, every_s=5)
    trace.play(minutes + 5, hopper(1.0, leaves=leaves))
    assert trace.opened == [SUSTAINED]
    assert trace.known[0].severity == "info"
    assert "in turn for" in trace.texts[SUSTAINED]


def test_it_ends_when_the_use_does() -> None:
    trace = Trace(policies(sustained_minutes=2.0), gpus=4, every_s=5)
    trace.play(6, hopper(1.0, leaves=True)).play(12, lambda minute: [])
    assert (trace.opened, trace.closed) == ([SUSTAINED], [SUSTAINED])


@pytest.mark.parametrize(("gpus", "pct"), [(4, 30.0), (2, 45.0), (4, 60.0)])
def test_steady_light_use_of_several_gpus_is_not_sustained_use(gpus: int, pct: float) -> None:
    def steady(minute: float) -> list[ProcessReading]:
        return [process(pid=100 + on, on=on, sm_pct=pct) for on in range(gpus)]

    assert Trace(gpus=4).play(30, steady).told == []


def test_use_of_all_gpus_is_reported_after_the_rule_time_and_not_before() -> None:
    def all_of_them(minute: float) -> list[ProcessReading]:
        return [process(pid=100 + on, on=on, sm_pct=95.0) for on in range(4)]

    trace = Trace(gpus=4).play(9.5, all_of_them)
    assert trace.told == []
    assert trace.play(2, all_of_them).opened == [SUSTAINED] * 4
