"""Capacity figures are computed in the background, stored, and shown by page, REST and metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from django_q.models import OrmQ
from msgspec.structs import replace

from gpucoord_site.http.middleware import COOKIE
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import GpuHour
from monitor.pages.metrics import Families
from monitor.thresholds import rows as thresholds
from reports import tasks
from reports.capacity import pages as metrics
from reports.capacity import rows, step
from reports.capacity.policy import replay
from reports.models import CapacityResult
from scheduler.dispatch.inputs import PlanInput
from scheduler.facts.jobs import Requirement
from scheduler.facts.plans import PlanPolicy, Slots
from scheduler.queue.planner.gates import PlannerThresholds
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, gpu_uuid, queued_job, slot, snapshot
from tests.builders import host as host_reading
from tests.monitor.past import NOTHING, gpu_row
from tests.monitor.scrape import Scrape, scrape_of
from tests.reports.capacity.recordings import known_gpu
from tests.scheduler.jobs.test_job_api import Api

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
UTC_ZONE = ZoneInfo("UTC")
AsUser = Callable[[User], Client]
HOURS = 16 * 24


@pytest.fixture
def host(settings: Any) -> str:
    return str(settings.CONFIG.node)


@pytest.fixture
def machine(host: str) -> None:
    """One GPU with 16 days of readings."""
    row = gpu_row(gpu_uuid(0), NOW, host=host)
    first = int(NOW.timestamp()) // 86_400 * 86_400 - HOURS * 3600
    known = {"utilization_pct_s": 72_000.0, "utilization_known_s": 3600, "energy_j": 3.6e6}
    GpuHour.objects.bulk_create(
        GpuHour(gpu=row, t=first + hour * 3600, **(NOTHING | known | {"power_known_s": 3600}))
        for hour in range(HOURS)
    )
    read_now(host)


def read_now(host: str, **changes: Any) -> None:

    found = snapshot([gpu(0, **changes)], host=replace(host_reading(), name=host))
    snapshots.record(replace(found, at=timezone.now()))


def switch_off() -> None:
    thresholds.change("capacity", {"enabled": False}, by="root", now=timezone.now())


def test_all_figures_of_a_machine_with_history(host: str, machine: None, alice: User) -> None:
    job = jobs_made.finished(alice)
    job.attempts.update(host=host)
    body = step.compute(host, NOW + timedelta(hours=1), UTC_ZONE)
    assert body is not None
    assert body["all_gpus"]["utilisation_pct"]["whole"]["p95"] == 20
    assert body["gpus"][0]["idle_hours"] == 0
    assert body["demand"]["supply_gpus"] == 1
    assert body["forecast"]["days"] == 16
    assert body["replay"]["recorded"]["p50_s"] == 1
    assert body["replay"]["replayed"]["p50_s"] == 0
    assert [one["kind"] for one in body["replay"]["alternatives"]] == ["more", "mig", "mig", "mig"]
    assert CapacityResult.objects.get().body == body


def test_the_wait_of_a_job_of_unknown_length_counts_and_its_demand_does_not(
    host: str, machine: None, alice: User
) -> None:
    last = datetime.fromtimestamp(GpuHour.objects.latest("t").t, UTC)
    jobs_made.waiting(alice, last)
    body = step.figures(host, last + timedelta(hours=1), UTC_ZONE, monotonic() + 60)
    assert body["demand"]["waiting_gpu_hours"] == pytest.approx(1)
    assert body["demand"]["peak_gpus"] == 0


def test_a_split_tells_how_many_waiting_jobs_it_would_start() -> None:
    """Small jobs that each want a GPU for themselves: two MIG instances start two of them."""
    queue = [queued_job(number, exclusive=True, memory_bytes=8 * GIB) for number in range(1, 4)]
    current = PlanInput(
        queue, Slots(host="gpubox", gpus=(slot(0),)), PlanPolicy(), PlannerThresholds()
    )
    split = replay.split([known_gpu(0)], known_gpu(0), ((4, 4), (3, 4)))

    assert step.starts_now(split, current, NOW) == 2
    in_use = replace(current, slots=replace(current.slots, gpus=(slot(0, jobs=(9,)),)))
    assert step.starts_now(split, in_use, NOW) is None


def test_a_host_without_gpus_has_no_replay(host: str) -> None:
    body = step.compute(host, NOW, UTC_ZONE)
    assert body is not None
    assert (body["gpus"], body["forecast"], body["replay"]) == ([], None, None)
    assert body["demand"]["unmet_gpu_hours"] is None


def test_replays_beyond_the_time_limit_have_no_figures(host: str, alice: User) -> None:
    job = jobs_made.finished(alice)
    job.attempts.update(host=host)
    work = rows.recorded_work(host, NOW - timedelta(days=1), NOW + timedelta(hours=1), 10)
    given = step.ReplayInput(jobs=work.jobs)
    assert step.replay(given, [known_gpu()], deadline=0) is None
    assert step.replay(given, [known_gpu()], deadline=float("inf")) is not None


def test_a_failure_is_stored_beside_the_old_figures(
    host: str, machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step.compute(host, NOW, UTC_ZONE)

    def fail(*_: object) -> None:
        raise ArithmeticError("no figures today")

    monkeypatch.setattr(step, "figures", fail)
    with pytest.raises(ArithmeticError):
        step.compute(host, NOW, UTC_ZONE)
    row = CapacityResult.objects.get()
    assert row.problem == "ArithmeticError: no figures today"
    assert row.body["gpus"]


def test_the_controller_queues_the_task_once_a_day_in_the_queue_of_the_reports(
    settings: Any,
) -> None:
    assert tasks.queue_due(NOW) == ()
    assert tasks.queue_due(NOW + timedelta(minutes=1)) == ("plan_capacity",)
    assert tasks.queue_due(NOW + timedelta(hours=23)) == ()
    (queued,) = OrmQ.objects.all()
    assert queued.key == settings.REPORT_CLUSTER["cluster_name"]
    assert queued.key != settings.Q_CLUSTER["cluster_name"]
    assert queued.func() == "reports.tasks.plan_capacity"


def test_switched_off_nothing_is_computed(host: str, root: User, as_user: AsUser) -> None:
    switch_off()
    assert tasks.queue_due(NOW) == tasks.queue_due(NOW + timedelta(days=2)) == ()
    assert step.compute(host, NOW, UTC_ZONE) is None
    assert Api(root).get("/reports/capacity/")[0] == 404
    assert Api(root).post("/reports/capacity/")[0] == 404
    page = as_user(root).get("/reports/capacity/").content.decode()
    assert "Capacity planning is off" in page
    assert not scrape().families


def test_rest_shows_the_newest_figures(host: str, machine: None, alice: User) -> None:
    assert Api(alice).get("/reports/capacity/")[1]["at"] is None
    step.compute(host, NOW, UTC_ZONE)
    status, body = Api(alice).get("/reports/capacity/")
    assert status == 200
    assert body["gpus"][0]["uuid"] == gpu_uuid(0)
    assert len(body["queue_gpus"]["by_hour_of_week"]) == 168


def test_idle_energy_has_a_cost_once_a_price_is_set(
    host: str, machine: None, alice: User, as_user: AsUser
) -> None:
    GpuHour.objects.update(utilization_pct_s=0)
    step.compute(host, NOW, UTC_ZONE)
    assert Api(alice).get("/reports/capacity/")[1]["gpus"][0]["idle_cost"] is None
    thresholds.change("reports", {"price_per_kwh": 0.5}, by="root", now=timezone.now())
    # 384 hours of 1 kWh.
    assert Api(alice).get("/reports/capacity/")[1]["gpus"][0]["idle_cost"] == 192
    assert "192.00 EUR" in as_user(alice).get("/reports/capacity/").content.decode()


def test_rest_refuses_unknown_hosts_and_parameters(alice: User) -> None:
    assert Api(alice).get("/reports/capacity/", host="nowhere")[0] == 404
    assert Api(alice).get("/reports/capacity/", hosts="x")[0] == 422
    assert Api(alice).get("/reports/capacity/", host="a\0b")[0] in (400, 404, 422)


def test_only_operators_have_figures_computed_and_only_once_at_a_time(
    alice: User, root: User
) -> None:
    assert Api(alice).post("/reports/capacity/")[0] == 403
    status, first = Api(root).post("/reports/capacity/")
    assert status == 202
    assert Api(root).post("/reports/capacity/")[1] == first
    assert OrmQ.objects.count() == 1


def test_the_page_leads_from_an_empty_state_to_the_figures(
    host: str, machine: None, alice: User, root: User, as_user: AsUser
) -> None:
    page = as_user(alice).get("/reports/capacity/").content.decode()
    assert "No figures yet" in page
    assert "Compute now" not in page
    as_user(root).post("/reports/capacity/")
    assert "being computed" in as_user(root).get("/reports/capacity/").content.decode()
    step.compute(host, NOW, UTC_ZONE)
    page = as_user(root).get("/reports/capacity/").content.decode()
    assert "Mean demand stays below 1 GPU until 2 Apr 2026" in page
    assert "No job has run in the last 14 days" in page


@pytest.mark.parametrize("metric", ["utilisation", "memory", "queue", "nonsense"])
def test_the_page_shows_each_figure_of_each_gpu(
    host: str, machine: None, alice: User, as_user: AsUser, metric: str
) -> None:
    step.compute(host, NOW, UTC_ZONE)
    for gpu_index in ("", "0", "99"):
        answer = as_user(alice).get("/reports/capacity/", {"metric": metric, "gpu": gpu_index})
        assert answer.status_code == 200


def test_users_may_not_have_figures_computed_on_the_page(alice: User, as_user: AsUser) -> None:
    assert as_user(alice).post("/reports/capacity/").status_code == 403


def test_the_page_of_an_unknown_host_is_not_found(alice: User, as_user: AsUser) -> None:
    assert as_user(alice).get("/reports/capacity/?host=nowhere").status_code == 404


def scrape() -> Scrape:
    into = Families()
    metrics._inputs.clear()
    metrics.add_metrics(into, timezone.now())
    return scrape_of(into)


def test_placeable_memory_is_what_margin_and_others_leave(host: str) -> None:
    read_now(host, memory_used_bytes=10 * GIB)
    found = scrape().families["gpucoord_placeable_memory_bytes"].samples
    assert [(s.labels["gpu"], s.value) for s in found] == [(gpu_uuid(0), 70 * GIB - 256 * 1024**2)]


def test_placeable_memory_that_is_unknown_has_no_sample(host: str) -> None:
    read_now(host, memory_used_bytes=None)
    assert "gpucoord_placeable_memory_bytes" not in scrape().families


def test_demand_of_jobs_in_gpus_and_bytes(host: str, alice: User) -> None:
    read_now(host)
    jobs_made.waiting(alice, requirement=Requirement(gpus=2, exclusive=True))
    jobs_made.waiting(alice, requirement=Requirement(memory_bytes=20 * GIB))
    found = scrape()
    gpus = {s.labels["state"]: s.value for s in found.families["gpucoord_demand_gpus"].samples}
    memory = found.families["gpucoord_demand_memory_bytes"].samples
    assert gpus == {"waiting": 2.25, "running": 0}
    assert {s.labels["state"]: s.value for s in memory} == {"waiting": 180 * GIB, "running": 0}


def test_the_hours_of_the_week_are_those_of_the_browser_with_utc_in_the_title(
    host: str, machine: None, alice: User, as_user: AsUser
) -> None:
    step.compute(host, NOW, UTC_ZONE)
    client = as_user(alice)
    ours = _titles(client.get("/reports/capacity/").content.decode())
    client.cookies[COOKIE] = "Asia/Tokyo"
    html = client.get("/reports/capacity/").content.decode()
    theirs = _titles(html)

    assert "Hours are in Asia/Tokyo" in html
    assert theirs[0].startswith("Mon 00:00 (Sun 15:00 UTC): ")
    assert [text.split(": ", 1)[1] for text in theirs] == [
        text.split(": ", 1)[1] for text in ours[-9:] + ours[:-9]
    ]


def test_hours_of_the_server_are_kept_for_a_zone_that_differs_by_half_an_hour(
    host: str, machine: None, alice: User, as_user: AsUser
) -> None:
    step.compute(host, NOW, UTC_ZONE)
    client = as_user(alice)
    client.cookies[COOKIE] = "Asia/Kolkata"
    html = client.get("/reports/capacity/").content.decode()

    assert "Hours are in UTC, the server&#x27;s time zone." in html.replace("'", "&#x27;")
    assert _titles(html)[0].startswith("Mon 00:00 (Mon 00:00 UTC): ")


def _titles(html: str) -> list[str]:
    return re.findall(r'<span class="cell h\w+" title="([^"]*)"', html)
