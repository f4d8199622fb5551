"""When time windows let a job start, laid out ahead, is what they say at each instant."""

from __future__ import annotations

from datetime import datetime, time, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.facts.people import Window
from scheduler.limits.time_windows.policy.rules import WindowPolicy, asking, closed_for
from scheduler.queue.planner.forecast.time_windows import WindowForecast
from tests.builders import NOW, gpu_uuid, queued_job, slot

POLICY = WindowPolicy()
hours = st.integers(0, 23).map(time)
windows = st.builds(
    Window,
    id=st.integers(1, 9),
    holder=st.just("somebody"),
    members=st.sampled_from([frozenset({"alice"}), frozenset({"bob"})]),
    days=st.sets(st.integers(0, 6), min_size=1).map(lambda days: tuple(sorted(days))),
    start=hours,
    end=hours,
    zone=st.sampled_from(["UTC", "Europe/Berlin"]),
    gpu_uuids=st.sampled_from([(), (gpu_uuid(0),), (gpu_uuid(1),)]),
    kept=st.booleans(),
)
moments = st.integers(0, 14 * 24 * 2).map(lambda halves: NOW + timedelta(hours=halves / 2))


def _is_open(at: datetime, lasts: timedelta, preemptible: bool, all_: list[Window]) -> bool:
    request = queued_job(1, exclusive=True).requirement
    job = asking("alice", request, lasts, preemptible, at, POLICY)
    return gpu_uuid(0) not in closed_for(job, all_, [slot(0)], (), at)


@settings(max_examples=40, deadline=None)
@given(st.lists(windows, max_size=3), moments, st.integers(1, 30), st.booleans())
def test_it_opens_at_the_first_moment_at_which_nothing_is_in_the_way(
    all_: list[Window], at: datetime, lasts_h: int, preemptible: bool
) -> None:
    lasts = timedelta(hours=lasts_h)
    job = queued_job(1, exclusive=True, time_limit=lasts, preemptible=preemptible)
    opens = WindowForecast(all_, POLICY, NOW).opens(job, gpu_uuid(0), None, at)

    assert (opens == at) == _is_open(at, lasts, preemptible, all_)
    if opens is not None:
        assert _is_open(opens, lasts, preemptible, all_)
        between = int((opens - at) / timedelta(hours=1))
        assert not any(
            _is_open(at + timedelta(hours=hour), lasts, preemptible, all_)
            for hour in range(min(between, 48))
        )
