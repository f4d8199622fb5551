from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import time, timedelta
from math import inf

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.facts.readings import Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Agent
from monitor.pages.rendering import REGION_PREFIX, Renderer
from scheduler.charts import Bar, BarKind, Span
from scheduler.dispatch.steps import preview
from scheduler.facts.jobs import Requirement
from scheduler.facts.people import Window
from scheduler.jobs.pages import timeline
from scheduler.templatetags.job_tags import timeline_label
from tests import jobs_made
from tests.builders import NOW, gpu_uuid

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
LATER = NOW + timedelta(seconds=2)
TOPIC = f"{REGION_PREFIX}timeline"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Readings of the tests are as old as NOW."""
    monkeypatch.setattr(timezone, "now", lambda: LATER)
    timeline.forget()
    preview.forget()
    yield
    timeline.forget()
    preview.forget()


def test_jobs_are_links_with_their_owner_and_state(
    alice: User, as_user: Callable[[User], Client], seen: Callable[..., Snapshot]
) -> None:
    seen(2)
    job = jobs_made.running(alice, on=(1,), name="train")
    html = as_user(alice).get("/timeline/").text

    assert "data-timeline" in html
    assert f'href="/jobs/{job.pk}/"' in html
    assert f'aria-label="job {job.pk} train, alice, running"' in html


def test_jobs_of_an_agent_name_it(
    alice: User, as_user: Callable[[User], Client], seen: Callable[..., Snapshot]
) -> None:
    seen(1)
    agent = Agent.objects.create(user=alice, name="helper", created_at=NOW)
    job = jobs_made.running(alice, agent=agent.pk, name="train")
    html = as_user(alice).get("/timeline/").text

    assert f'aria-label="job {job.pk} train, alice’s agent, running"' in html
    assert 'title="Agent helper">alice’s agent</a>' in html


def test_the_dashboard_shows_it_too(
    alice: User, as_user: Callable[[User], Client], seen: Callable[..., Snapshot]
) -> None:
    seen(1)
    assert "data-timeline" in as_user(alice).get("/").text


def test_without_gpus_it_says_so(alice: User, as_user: Callable[[User], Client]) -> None:
    assert "No GPUs in the last 24 hours" in as_user(alice).get("/timeline/").text


def test_the_table_lists_what_the_picture_shows(
    alice: User, bob: User, as_user: Callable[[User], Client], seen: Callable[..., Snapshot]
) -> None:
    seen(2)
    jobs_made.running(alice, name="train")
    jobs_made.running(bob, on=(1,), name="tune")
    table = as_user(alice).get("/timeline/?owner=bob").text.split('id="timeline-table"')[1]

    assert "tune" in table
    assert "train" not in table


def test_only_the_row_of_a_changed_gpu_is_sent_again(
    alice: User, seen: Callable[..., Snapshot]
) -> None:
    seen(3)
    jobs_made.running(alice, on=(0,))
    renderer = Renderer()
    first = renderer.whole((), [TOPIC], LATER)
    jobs_made.running(alice, on=(2,))
    timeline.forget()
    second = renderer.whole((), [TOPIC], LATER)

    changed = second.boards[TOPIC].newer_than(first.n)
    uuid = snapshots.newest_all()[0].gpus[2].uuid
    assert [part.target for part in changed if part.target.startswith("tl-")] == [f"tl-{uuid}"]
    assert not any(part.target == "region-timeline" for part in changed)


def test_pages_that_do_not_show_it_do_not_load_it(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[..., Snapshot]
) -> None:
    seen(1)
    loaded = []
    monkeypatch.setattr(timeline, "_shown", loaded.append)
    renderer = Renderer()
    renderer.whole(snapshots.newest_all(), ["processes"], NOW)

    assert loaded == []


def test_a_waiting_job_is_expected_where_the_forecast_puts_it(
    alice: User, seen: Callable[..., Snapshot]
) -> None:
    seen(1)
    waits = jobs_made.waiting(alice, at=LATER)
    [row] = timeline.build(LATER).rows

    [bar] = [bar for bar, _ in row.bars if bar.job == waits.pk]
    assert (bar.state, bar.owner) == ("expected", "alice")


def test_the_name_of_an_expected_run_without_a_known_end_reaches_to_the_end_of_the_view() -> None:
    now = int(NOW.timestamp())
    bar = Bar(
        gpu_uuid=gpu_uuid(1), kind=BarKind.EXPECTED, owner="alice", label="train",
        begin=now + 60, end=None,
    )  # fmt: skip
    span = Span(since=now - 3600, until=now + 3600, now=now)

    assert 'data-to="Infinity"' in timeline_label(bar, 0, 1, span)


def test_a_time_window_is_a_band(
    monkeypatch: pytest.MonkeyPatch, alice: User, seen: Callable[..., Snapshot]
) -> None:
    seen(1)
    window = Window(
        id=1, holder="alice", members=frozenset({"alice"}), days=tuple(range(7)),
        start=time(0), end=time(0), zone="UTC",
    )  # fmt: skip
    monkeypatch.setattr("scheduler.limits.time_windows.rows.approved", lambda *_: (window,))
    [row] = timeline.build(LATER).rows

    assert {band.holder for band in row.bands} == {"alice"}


def test_of_many_gpus_only_bars_with_room_have_a_name(
    alice: User, as_user: Callable[[User], Client], seen: Callable[..., Snapshot]
) -> None:
    def names(gpus: int) -> int:
        timeline.forget()
        seen(gpus)
        return as_user(alice).get("/timeline/").text.count('class="tl-label ')

    jobs_made.running(alice, name="train")

    # It runs for two seconds.
    assert names(2) == 1
    assert names(timeline.MANY_GPUS + 1) == 0


def test_the_page_of_a_waiting_job_tells_who_ends_when_on_the_gpus_it_could_use(
    alice: User, bob: User, as_user: Callable[[User], Client], seen: Callable[..., Snapshot]
) -> None:
    seen(2)
    known = jobs_made.running(bob, on=(0,), name="train")
    other = jobs_made.running(bob, on=(1,), name="elsewhere")
    ends_at = LATER + timedelta(minutes=15)
    known.attempts.update(ends_p50_at=ends_at, ends_p90_at=ends_at)
    wanted = Requirement(gpu_uuid=gpu_uuid(0))
    waits = jobs_made.waiting(alice, at=LATER, requirement=wanted)
    loaded = timeline.of_waiting(waits, LATER)
    html = as_user(alice).get(f"/jobs/{waits.pk}/").text

    assert [on.free_at for on in loaded["occupied"]] == [ends_at.timestamp()]
    assert f"{known.pk} train" in html
    assert f"{other.pk} elsewhere" not in html


def test_an_end_that_is_unknown_is_no_time_for_a_waiting_job(
    alice: User, bob: User, seen: Callable[..., Snapshot]
) -> None:
    seen(1)
    jobs_made.running(bob, on=(0,))
    waits = jobs_made.waiting(alice, at=LATER)

    [on] = timeline.of_waiting(waits, LATER)["occupied"]
    assert on.free_at == inf


def test_the_page_of_a_running_job_shows_no_ends_of_others(
    alice: User, as_user: Callable[[User], Client], seen: Callable[..., Snapshot]
) -> None:
    seen(1)
    runs = jobs_made.running(alice, on=(0,))

    assert "data-timeline" not in as_user(alice).get(f"/jobs/{runs.pk}/").text
