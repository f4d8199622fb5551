from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from gpucoord_site.http.middleware import COOKIE
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import audit, events
from monitor.models import AuditEntry, Exemption
from scheduler.limits.throttle.policy.throttle import Mode
from scheduler.limits.throttle.step import override
from scheduler.models import Job, ModeState
from tests import jobs_made
from tests.builders import gpu_uuid, snapshot
from tests.pages.test_incidents_page import made

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
AsUser = Callable[[User], Client]


def cells(client: Client) -> list[str]:
    html = client.get(f"/gpus/{gpu_uuid()}/").content.decode()
    return [part.split(">")[0] for part in html.split('<a class="cell ')[1:]]


@pytest.fixture(autouse=True)
def _seen() -> None:
    snapshots.record(snapshot(1, at=timezone.now()))


def test_the_heat_map_names_hours_of_the_browser_with_utc_in_the_title(
    alice: User, as_user: AsUser
) -> None:
    client = as_user(alice)
    client.cookies[COOKIE] = "Asia/Kolkata"
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    begin, end = (hour + timedelta(hours=5 + n, minutes=30) for n in (0, 1))
    last = cells(client)[-1]

    assert f'aria-label="GPU 0, {begin:%H:%M} to {end:%H:%M}:' in last
    assert f"({hour:%H:%M}–{hour + timedelta(hours=1):%H:%M} UTC)" in last.split('title="')[1]
    assert f"{{hm:{hour.isoformat()}}}" in last.split('data-label="')[1]


@pytest.mark.parametrize("name", ["", "Nowhere/Land", "../../etc/passwd", "x" * 5000, "é"])
def test_a_zone_that_does_not_exist_leaves_the_zone_of_the_server(
    name: str, alice: User, as_user: AsUser
) -> None:
    client = as_user(alice)
    client.cookies[COOKIE] = name
    hour = datetime.now(UTC)

    assert f'aria-label="GPU 0, {hour:%H}:00 to' in cells(client)[-1]


def test_the_zone_of_one_request_does_not_reach_the_next(alice: User, as_user: AsUser) -> None:
    client = as_user(alice)
    client.cookies[COOKIE] = "Asia/Kolkata"
    client.get("/shares/")

    assert timezone.get_current_timezone_name() == "UTC"


def test_the_quota_resets_at_a_time_in_the_zone_of_the_browser(
    alice: User, as_user: AsUser
) -> None:
    client = as_user(alice)
    client.cookies[COOKIE] = "Asia/Kolkata"
    html = client.get("/shares/").content.decode()
    reset = html.split("Resets ")[1].split("</p>")[0]

    assert "05:30</time>" in reset
    assert "00:00:00 UTC" in reset
    assert 'data-time="in"' in reset


def title_of(html: str, begin: str) -> str:
    """The attributes of the element that begins so, from its title on."""
    return html.split(begin)[1].split(">")[0].split(" title=", 1)[1]


def test_the_title_of_a_waiting_job_has_the_zone_of_the_browser_and_utc(
    alice: User, as_user: AsUser
) -> None:
    at = timezone.now().replace(hour=9, minute=0) + timedelta(days=2)
    day = f"{at:%a} {at.day} {at:%b}"
    text = f"It does not start before {day} 09:00 (UTC)."
    blockers = [{"code": "BeginTime", "text": text, "headline": text}]
    Job.objects.filter(pk=jobs_made.waiting(alice).pk).update(blockers=blockers)
    client = as_user(alice)
    client.cookies[COOKIE] = "Asia/Kolkata"
    title = title_of(client.get("/").content.decode(), '<span class="where"')

    assert f'before {day} 14:30. ({day} 09:00 UTC)"' in title
    assert 'data-title="It does not start before {weekday:' in title


def test_the_title_of_the_mode_has_the_zone_of_the_browser_and_utc(
    alice: User, as_user: AsUser, settings: Any
) -> None:
    until = (timezone.now() + timedelta(days=2)).replace(hour=9, minute=0)
    ModeState.objects.create(
        host=settings.CONFIG.node,
        mode="defensive",
        reason="root has set it.",
        since_at=timezone.now(),
        override="defensive",
        override_until=until,
        override_by="root",
    )
    client = as_user(alice)
    client.cookies[COOKIE] = "Asia/Kolkata"
    title = title_of(client.get("/jobs/").content.decode(), 'data-shape="warning" href="/mode/"')
    day = f"{until:%a} {until.day} {until:%b}"

    assert f'Set until {day} 14:30. ({day} 09:00 UTC)"' in title


def test_the_end_of_an_exemption_is_in_the_zone_of_the_browser(root: User, as_user: AsUser) -> None:
    row, client = made(), as_user(root)
    client.cookies[COOKIE] = "Asia/Kolkata"
    client.post(f"/incidents/{row.pk}/exempt/", {"scope": "user", "days": "7"})
    until = Exemption.objects.get().until_at
    assert until is not None
    entry = AuditEntry.objects.get(action="INCIDENT_EXEMPTED")
    assert f"until {until:%Y-%m-%d %H:%M} UTC" in entry.text

    trail = client.get(f"/incidents/{row.pk}/").content.decode().split("Activity")[1]

    local = until.astimezone(ZoneInfo("Asia/Kolkata"))
    assert f'title="{until:%Y-%m-%d %H:%M}:00 UTC" data-time="weekday">' in trail
    assert f"{local:%a} {local.day} {local:%b}" in trail
    assert f"{local:%H:%M}</time>" in trail


def test_an_older_text_with_the_zone_of_the_server_is_shown_as_it_was_stored(
    root: User, as_user: AsUser
) -> None:
    row = made()
    text = "root exempted user alice from this rule until 2026-11-25 14:00 CET"
    audit.note(
        "INCIDENT_EXEMPTED", text, by="root", now=timezone.now(), subject=f"incident {row.pk}"
    )

    assert text in as_user(root).get(f"/incidents/{row.pk}/").content.decode()


def test_the_audit_log_shows_the_end_of_a_set_mode_in_the_zone_of_the_browser(
    root: User, as_user: AsUser, settings: Any
) -> None:
    at, client = datetime(2027, 3, 2, 21, 30, tzinfo=UTC), as_user(root)
    client.cookies[COOKIE] = "Asia/Kolkata"
    override(settings.CONFIG.node, Mode.DEFENSIVE, at, by="root", now=timezone.now())
    assert "until 2027-03-02 21:30 UTC" in audit.about(f"mode {settings.CONFIG.node}")[0].text

    page = client.get("/admin/monitor/auditentry/").content.decode()
    assert "By user" in page
    assert "By by" not in page

    assert 'title="2027-03-02 21:30:00 UTC" data-time="weekday">Wed 3 Mar 2027 03:00<' in page


def test_an_event_shows_its_moments_in_the_zone_of_the_browser(
    alice: User, as_user: AsUser
) -> None:
    text = "GPU 0 is kept for bob from Tue 2 Mar 21:30 (UTC)."
    events.add("GPU_STATE_CHANGED", text, now=timezone.now())
    client = as_user(alice)
    client.cookies[COOKIE] = "Asia/Kolkata"
    page = client.get("/events/").content.decode()

    assert '21:30:00 UTC" data-time="weekday">Wed 3 Mar' in page
