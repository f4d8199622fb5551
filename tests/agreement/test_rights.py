"""Every door says the same entitlement, target share and use of a user, and the same counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from time_machine import TimeMachineFixture

from gpucoord_site.cli import verbs
from monitor.facts.formats import part
from monitor.incidents import pages
from monitor.incidents.pages import REGION
from monitor.models import Incident
from monitor.owners.policy import Viewer
from monitor.pages import metrics
from monitor.pages.metrics import Families
from reports.figures.actions import build
from reports.figures.policy import periods
from scheduler.facts.jobs import Requirement
from scheduler.models import HostCapacity, Quota, UsageShare
from tests import jobs_made
from tests.builders import GIB, NOW, gpu_uuid
from tests.cli_bridge import connect_as
from tests.reports.made import ran, watched_gpu

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
HOUR = timedelta(hours=1)
SHARES = (None, 10, 30, 60, 90)


@pytest.fixture
def machine(alice: User, bob: User, charlie: User, time_machine: TimeMachineFixture) -> None:
    """Four GPUs: alice has a job on two, bob waits, charlie has a process outside the queue."""
    time_machine.move_to(NOW, tick=False)
    uuids = [gpu_uuid(index) for index in range(4)]
    HostCapacity.objects.create(host="gpubox", at=NOW, gpu_uuids=uuids, gpu_bytes=80 * GIB)
    jobs_made.running(alice, (0, 1), requirement=Requirement(gpus=2))
    jobs_made.waiting(bob)
    gpus = [watched_gpu(NOW - timedelta(hours=24), NOW, index) for index in range(4)]
    ran(gpus[2], NOW - timedelta(hours=5), 5, user="charlie")
    UsageShare.objects.create(
        host="gpubox", owner="charlie", usage=0.2, outside=1.0, seen_s=100, known_s=100
    )


@pytest.mark.parametrize("shares", [(None, None, None), (30, None, 60), (90, 60, 30), (10, 30, 0)])
def test_each_door_says_the_same_rights(
    machine: None,
    alice: User,
    bob: User,
    charlie: User,
    root: User,
    shares: tuple[float | None, ...],
    as_user: Callable[[User], Client],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    people = (alice, bob, charlie)
    for person, share in zip(people, shares, strict=True):
        Quota.objects.create(user=person, share_pct=share)
    client = as_user(root)
    page = client.get("/shares/").text
    listed = {line["name"]: line for line in client.get("/api/shares/").json()["people"]}
    usage = client.get("/api/reports/usage/").json()["users"]
    reported = {row["user"]: row for row in usage}
    connect_as(root, monkeypatch)
    assert "charlie" in reported
    entitled = 0.0
    for person in people:
        name = person.username
        rights = client.get("/api/quota/", {"user": name}).json()
        assert verbs.quota(["--user", name, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        for figure in ("entitlement_pct", "target_share_pct", "use_pct"):
            assert rights[figure] == told[figure] == listed[name][figure], (name, figure)
        for figure in ("entitlement_pct", "target_share_pct") if name in reported else ():
            assert reported[name][figure] == pytest.approx(rights[figure], abs=1e-5), (name, figure)
        assert part(rights["entitlement_pct"] / 100) in _row(page, name)
        entitled += rights["entitlement_pct"]
    assert entitled <= 100 + 1e-6


def _row(page: str, name: str) -> str:
    [row] = re.findall(rf'<tr id="share-{name}-.*?</tr>', page, re.DOTALL)
    return str(row)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["info", "warning", "error"]), st.booleans(), st.booleans()),
        max_size=9,
    )
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_door_counts_the_same_open_incidents(rows: list[tuple[str, bool, bool]]) -> None:
    """Each row: its severity, whether it has a facet, whether it is muted."""
    Incident.objects.all().delete()
    now = timezone.now()
    for number, (severity, has_facet, is_muted) in enumerate(rows):
        times = {"since_at": now, "opened_at": now, "last_seen_at": now}
        until = now + timedelta(hours=1) if is_muted else None
        lead = Incident.objects.create(
            host="box", rule="sustained", key=f"{number}", text="Use", severity=severity,
            snoozed_until=until, **times,
        )  # fmt: skip
        if has_facet:
            Incident.objects.create(
                host="box", rule="idle_held", key=f"{number}", text="Idle", severity=severity,
                snoozed_until=until, lead=lead, **times,
            )  # fmt: skip
    open_now = [severity for severity, _, is_muted in rows if not is_muted]
    loaded = REGION.load(now)
    families = Families()
    metrics.add_incidents(families, ["box"])
    harms = any(severity != "info" for severity in open_now)

    assert pages.current(now).open == len(open_now)
    assert pages.alert_count(now) == (len(open_now) if harms else 0)
    assert loaded["count"] == len(open_now)
    assert len(loaded["lines"]) == min(len(open_now), loaded["most"])
    assert _sum(families, "gpucoord_incidents_open") == len(open_now)


def _sum(families: Families, name: str) -> float:
    return sum(
        sample.value
        for metric in families.collect()
        for sample in metric.samples
        if sample.name == name
    )


def test_the_report_of_a_gpu_lists_the_same_entitlement(machine: None, alice: User) -> None:
    whole, of_gpu = (
        build(
            periods.parse("24h", "", "", "UTC", NOW),
            periods.scope(scope),
            Viewer("root", operator=True),
            NOW,
        )
        for scope in ("all", f"gpu:{gpu_uuid(2)}")
    )
    rights = {row.user: row.entitled_pct for row in whole.users}
    assert all(rights[row.user] == row.entitled_pct for row in of_gpu.users)


@pytest.mark.usefixtures("machine")
def test_each_door_says_the_same_line_of_an_incident(
    root: User,
    as_user: Callable[[User], Client],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That of the part that delays others most, and not of the part that opened first."""
    facts = {
        "host": "gpubox", "gpu_id": gpu_uuid(2), "user": "charlie", "since_at": NOW - HOUR,
        "opened_at": NOW - HOUR, "last_seen_at": NOW,
    }  # fmt: skip
    lead = Incident.objects.create(rule="sustained", key="1", text="Quiet", **facts)
    Incident.objects.create(
        rule="fair_share", key="2", text="Loud", severity="warning", waited_jobs=2, lead=lead,
        **facts,
    )  # fmt: skip
    client = as_user(root)
    connect_as(root, monkeypatch)

    [listed] = client.get("/api/incidents/").json()["incidents"]
    assert verbs.incidents([]) == 0
    report = client.get("/api/reports/usage/").json()

    assert [text for _, text, _ in REGION.load(NOW)["lines"]] == ["Loud"]
    assert (listed["headline"], listed["text"]) == ("Loud", "Quiet")
    assert "Loud" in capsys.readouterr().out
    assert [finding["text"] for finding in report["open_incidents"]] == ["Loud"]
    assert "Loud" in client.get("/incidents/").text
