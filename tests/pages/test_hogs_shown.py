from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.facts.incidents import IDLE_HELD, MEMORY_HOG
from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents import pages as incident_badges
from monitor.models import Gpu, Pattern, ProcessMinute, ProcessUse
from tests.builders import GIB, NOW, gpu_uuid, process, snapshot
from tests.monitor.past import process_use
from tests.pages.test_incidents_page import get, made

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]
PID = 4_200_001


@pytest.fixture(autouse=True)
def _seen() -> None:
    busy = process(PID, on=1, memory_bytes=40 * GIB, sm_pct=0.0)
    snapshots.record(snapshot(2, [busy], at=timezone.now()))


def row_of(html: str, index: int) -> str:
    return html.split(f'data-gpu-row="{index}"')[1].split("b-detail")[0]


def test_a_hog_has_its_badge_in_the_row_of_its_gpu_and_on_the_process(
    alice: User, as_user: AsUser
) -> None:
    row = made(gpu_id=gpu_uuid(1), pid=PID)
    html = get(as_user(alice), "/")
    detail = get(as_user(alice), f"/gpus/{gpu_uuid(1)}/card/")
    assert f'href="/incidents/{row.pk}/"' in row_of(html, 1)
    assert f'href="/incidents/{row.pk}/"' not in row_of(html, 0)
    assert detail.count(f'href="/incidents/{row.pk}/"') == 2
    assert "others waited" in detail


def test_a_gpu_with_a_hog_keeps_its_place(alice: User, as_user: AsUser) -> None:
    made(gpu_id=gpu_uuid(1), pid=PID)
    html = get(as_user(alice), "/")
    assert html.index(f'id="gpu-{gpu_uuid(0)}"') < html.index(f'id="gpu-{gpu_uuid(1)}"')
    assert " data-trouble" in row_of(html, 1)
    assert " data-trouble" not in row_of(html, 0)


def test_the_page_of_a_gpu_names_its_hog(alice: User, as_user: AsUser) -> None:
    made(gpu_id=gpu_uuid(1), pid=PID)
    head = get(as_user(alice), f"/gpus/{gpu_uuid(1)}/").split('id="figures"')[0]
    assert "others waited" in head


def test_the_page_of_a_process_says_that_it_hogs(alice: User, as_user: AsUser) -> None:
    idle_for(5)
    made(gpu_id=gpu_uuid(1), pid=PID)
    use = ProcessUse.objects.get()
    assert "others waited" in get(as_user(alice), f"/processes/{use.pk}/")


def test_an_incident_stands_once_on_the_dashboard_with_its_action(
    alice: User, as_user: AsUser
) -> None:
    row = made(text="erin holds 40 GiB")
    html = get(as_user(alice), "/")
    region = html.split('id="region-incidents"')[1].split("</section>")[0]
    assert f'href="/incidents/{row.pk}/" aria-label="Review: erin holds 40 GiB"' in region
    assert "open incident" not in html.split('id="board"')[1]


def test_the_dashboard_lists_open_incidents_the_worst_first(alice: User, as_user: AsUser) -> None:
    made(text="harmless one", severity="info")
    made(text="serious one", severity="error")
    made(text="asleep", snoozed_until=timezone.now() + timedelta(hours=1))
    made(text="over", closed_at=NOW)
    region = get(as_user(alice), "/").split('id="region-incidents"')[1].split("</section>")[0]
    assert region.index("serious one") < region.index("harmless one")
    assert "asleep" not in region
    assert "over" not in region


def test_a_quiet_dashboard_shows_no_open_incidents(alice: User, as_user: AsUser) -> None:
    assert "No open incidents" in get(as_user(alice), "/")


@pytest.mark.parametrize("path", ["/processes/", f"/gpus/{gpu_uuid(1)}/"])
def test_tables_of_processes_have_the_badge_too(path: str, alice: User, as_user: AsUser) -> None:
    row = made(gpu_id=gpu_uuid(1), pid=PID)
    assert f'<a class="chip warning" href="/incidents/{row.pk}/"' in get(as_user(alice), path)


def test_memory_held_idle_shows_for_how_long_in_the_row_and_on_its_process(
    alice: User, as_user: AsUser
) -> None:
    since = timezone.now() - timedelta(hours=3, minutes=44)
    made(rule=IDLE_HELD, gpu_id=gpu_uuid(1), pid=PID, since_at=since, waited_s=5000, waited_jobs=1)
    html = get(as_user(alice), "/")
    process = get(as_user(alice), f"/gpus/{gpu_uuid(1)}/card/").split("<table")[1]
    assert "3 h</time>" in row_of(html, 1)
    assert "3 h</time>" in process
    assert "Memory held idle on GPU 1: others wait" in html


def test_a_harmless_incident_has_a_neutral_shape(alice: User, as_user: AsUser) -> None:
    made(gpu_id=gpu_uuid(1), pid=PID, severity="info", hog_spans=[])
    html = get(as_user(alice), "/")
    detail = get(as_user(alice), f"/gpus/{gpu_uuid(1)}/card/")
    region = html.split('id="region-incidents"')[1].split("</section>")[0]
    assert "heavy use" in row_of(html, 1)
    assert "no job waits" in detail
    assert 'data-shape="ok"' not in row_of(html, 1) + detail + region


def test_of_several_badges_the_most_telling_is_shown() -> None:
    made(rule=MEMORY_HOG, gpu_id=gpu_uuid(1), pid=PID)
    made(gpu_id=gpu_uuid(1), pid=PID, hog_spans=[[0, 60]])
    made(rule=IDLE_HELD, gpu_id=gpu_uuid(1), pid=PID)
    assert incident_badges.current(timezone.now()).processes[gpu_uuid(1), PID].word == "hog"


def idle_for(minutes: int) -> None:
    now = timezone.now()
    begin = now - timedelta(minutes=minutes)
    facts = {"pid": PID, "start_ticks": 1000 + PID, "last_seen_at": now}
    use = process_use(store_gpu(), begin, **facts)
    for minute in range(minutes):
        t = int((begin + timedelta(minutes=minute)).timestamp()) // 60 * 60
        sums = {"sm_s": 0.1, "held_s": 60, "known_s": 60, "peak_memory_bytes": 40 * GIB}
        ProcessMinute.objects.create(use=use, t=t, **sums)


def store_gpu() -> Gpu:
    return Gpu.objects.get(pk=gpu_uuid(1))


def test_the_own_page_shows_recommendations(alice: User, as_user: AsUser) -> None:
    facts = {"memory_bytes": 40 * GIB, "waited_jobs": 2, "mean_pct": 0.67}
    row = made(rule=IDLE_HELD, gpu_id=gpu_uuid(1), **facts)
    html = get(as_user(alice), "/users/alice/")
    assert "python holds 40.0 GiB on GPU 1 and has used 0.7 % of the GPU in the last 1 h." in html
    assert "2 jobs have waited for it." in html
    assert f"/incidents/{row.pk}/" in html


def test_the_own_page_shows_idle_memory_and_its_begin(alice: User, as_user: AsUser) -> None:
    idle_for(90)
    html = get(as_user(alice), "/users/alice/")
    assert "You hold <b>40.0 GiB</b> with less than 2 % use of the GPU" in html
    assert "1 h 30 min" in html


def test_memory_with_an_open_incident_is_not_listed_twice(alice: User, as_user: AsUser) -> None:
    idle_for(90)
    made(rule=IDLE_HELD, gpu_id=gpu_uuid(1), pid=PID, memory_bytes=40 * GIB, mean_pct=0.0)
    html = get(as_user(alice), "/users/alice/")
    assert "has not used the GPU for" in html
    assert "with less than" not in html


def test_what_was_used_a_moment_ago_is_not_idle(alice: User, as_user: AsUser) -> None:
    idle_for(90)
    newest = ProcessMinute.objects.order_by("-t")[0]
    ProcessMinute.objects.filter(pk=newest.pk).update(sm_s=50)
    assert "with less than" not in get(as_user(alice), "/users/alice/")


def test_other_users_do_not_see_recommendations(alice: User, bob: User, as_user: AsUser) -> None:
    made(rule=IDLE_HELD)
    assert 'id="asked"' not in get(as_user(bob), "/users/alice/")


def test_patterns_are_visible_to_all_on_the_page_of_incidents(bob: User, as_user: AsUser) -> None:
    text = "python (alice) monopolises GPU 1 every night 20:00–06:00 (9 of the last 10 nights)"
    Pattern.objects.create(
        host="gpubox",
        gpu_id=gpu_uuid(1),
        user="alice",
        start_minute=1200,
        end_minute=360,
        zone="UTC",
        hits=9,
        chances=10,
        mean_pct=95,
        text=text,
        found_at=NOW,
    )
    assert text in get(as_user(bob), "/incidents/")


def test_the_hours_of_patterns_are_in_the_zone_of_the_site_whatever_the_viewers_is(
    alice: User, as_user: AsUser
) -> None:
    store_gpu()
    Pattern.objects.create(
        host="gpubox", gpu_id=gpu_uuid(1), user="frank", start_minute=1200, end_minute=360,
        zone="UTC", hits=9, chances=10, mean_pct=95.0, found_at=timezone.now(),
        text="python (frank) monopolises GPU 1 every night 20:00–06:00",
    )  # fmt: skip
    browser = as_user(alice)
    browser.cookies["timezone"] = "Asia/Kolkata"
    page = get(browser, "/incidents/")

    assert "hours in UTC" in page
    assert "20:00–06:00" in page
    assert "01:30" not in page
