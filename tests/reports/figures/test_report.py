from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.models import Claim, Exemption, Incident
from monitor.owners.policy import Look, Viewer
from monitor.owners.rows import look_of
from reports.figures import rows
from reports.figures.actions import NotAllowed, ScopeNotFound, build
from reports.figures.facts import GpuHours, Report, Table, UserFigures
from reports.figures.policy import people, periods
from reports.figures.policy.advice import ReportPolicy, above_entitlement, line, use_line
from reports.render import charts
from reports.render import wording as tables
from reports.render.actions import page_context
from scheduler.facts.jobs import Requirement
from scheduler.limits.quotas.policy import charging
from scheduler.models import DailyGpuUsage, HostCapacity, Job, Quota
from scheduler.queue.planner import blockers as stored_blockers
from tests.builders import GIB, NOW, gpu_uuid
from tests.jobs_made import end, place_again, running, waiting
from tests.reports.made import contended, ran, share_of_all, watch, watched_gpu

pytestmark = pytest.mark.django_db
DAY = timedelta(hours=24)
BEGIN = NOW - DAY
LINE = "python (PID 12345, alice): 8.0 hours at >90% (expected quota: 30%)"
OPERATOR = Viewer("root", operator=True)


def report(scope: str = "all", viewer: Viewer = OPERATOR, last: str = "24h") -> Report:
    period = periods.parse(last, "", "", "UTC", NOW)
    return build(period, periods.scope(scope), viewer, NOW)


def user(of: Report, name: str | None = "alice") -> UserFigures:
    return next(row for row in of.users if row.user == name)


@pytest.fixture
def waits(bob: User) -> None:
    """Each user is entitled to 30 %, and a job of bob waits all day for GPUs in use."""
    share_of_all(30)
    contended(bob, BEGIN)


@pytest.mark.usefixtures("waits")
def test_a_neighbour_at_95_percent_for_8_of_24_hours_is_a_violation() -> None:
    ran(watched_gpu(BEGIN, NOW), BEGIN + timedelta(hours=3), 8)

    made = report()

    assert [line(v) for v in made.violations] == [LINE]
    assert made.heavy_use == ()
    assert user(made).used == pytest.approx(7.6)
    assert user(made).caused_wait_hours == pytest.approx(0.7 * 8)
    assert "5.6 h" in made.recommendations[0].text
    assert made.recommendations[0].user == "alice"


@pytest.mark.usefixtures("waits")
def test_a_gpu_delays_one_waiting_job_at_a_time(bob: User) -> None:
    for _ in range(20):
        contended(bob, BEGIN)
    ran(watched_gpu(BEGIN, NOW), BEGIN + timedelta(hours=3), 8)

    made = report()

    assert user(made, "bob").waited_hours == pytest.approx(21 * 24)
    assert user(made).caused_wait_hours == pytest.approx(0.7 * 8)


def test_heavy_use_while_no_job_waits_is_listed_without_blame() -> None:
    share_of_all(30)
    ran(watched_gpu(BEGIN, NOW), BEGIN + timedelta(hours=3), 8)

    made = report()

    assert made.violations == ()
    assert [use_line(v) for v in made.heavy_use] == ["python (PID 12345, alice): 8.0 hours at >90%"]
    assert made.recommendations == ()


@pytest.mark.usefixtures("waits")
def test_only_hours_in_which_a_job_waited_that_could_have_run_there_count(bob: User) -> None:
    Job.objects.update(gpu_uuid=gpu_uuid(1))
    ran(watched_gpu(BEGIN, NOW), BEGIN, 12)
    assert report().violations == ()

    contended(bob, NOW - timedelta(hours=14))
    (only,) = report().violations
    assert (only.hours, only.waited_hours) == (pytest.approx(2), pytest.approx(1.4))


def test_a_wait_for_something_else_accuses_no_user(bob: User) -> None:
    share_of_all(30)
    waiting(bob, BEGIN)
    ran(watched_gpu(BEGIN, NOW), BEGIN, 12)

    assert report().violations == ()


@given(
    uses=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 20)), max_size=6),
    share=st.integers(1, 100),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("waits")
def test_no_violation_is_of_a_user_whose_bar_is_below_the_mark(
    uses: list[tuple[int, int, int]], share: int
) -> None:
    with transaction.atomic():
        Quota.objects.update(share_pct=share)
        gpus = [watched_gpu(BEGIN, NOW, index) for index in range(3)]
        for number, (index, begin, hours) in enumerate(uses):
            ran(
                gpus[index], BEGIN + timedelta(hours=begin), min(hours, 24 - begin),
                user=f"user{number % 2}", pid=number, start_ticks=number,
            )  # fmt: skip
        made = report()
        transaction.set_rollback(True)
    rows = {row.user: row for row in made.users}
    assert sum(row.entitled_pct or 0 for row in made.users) <= 100.001
    above = above_entitlement(made.users, made.violations)
    assert {v.user for v in made.violations} <= {row.user for row in above}
    for v in made.violations:
        assert v.waited_hours <= rows[v.user].caused_wait_hours + 1e-6
    for row in made.users:
        others = sum(other.waited_hours for other in made.users if other.user != row.user)
        assert row.caused_wait_hours <= min(row.held, others) + 1e-6


def test_time_without_readings_does_not_make_a_share_smaller() -> None:
    gpu = watched_gpu(NOW - timedelta(hours=12), NOW)
    ran(gpu, NOW - timedelta(hours=12), 6)

    made = report()

    assert made.coverage_pct == pytest.approx(50, abs=1)
    assert user(made).share_pct == pytest.approx(50, abs=1)


def test_use_that_was_not_measured_is_drawn_as_unknown_and_not_as_idle() -> None:
    ran(watched_gpu(BEGIN, NOW), BEGIN + timedelta(hours=3), 8, pct=None)

    made = report()
    (span,) = made.gpus[0].spans
    picture = charts.timeline(made, {})

    assert (span.user, span.used_pct) == ("alice", None)
    assert picture is not None
    assert "url(#unknown)" in picture.svg
    assert "url(#idle)" not in picture.svg


def test_idle_cost_is_unknown_where_the_energy_is_unknown() -> None:
    priced = ReportPolicy(price_per_kwh=0.3, price_per_gpu_hour=2.0)

    assert people.costs(None, None, GpuHours(), priced).idle is None
    assert people.costs(None, 5.0, GpuHours(), priced).idle == pytest.approx(1.5)
    assert people.costs(None, None, GpuHours(), ReportPolicy(price_per_gpu_hour=2.0)).idle == 0.0


def test_energy_that_no_process_is_charged_for_is_of_those_who_held_the_gpu_idle() -> None:
    ran(watched_gpu(BEGIN, NOW), BEGIN, 8, watts=80.0)

    made = report()

    # 24 h of 100 W, of which a process took 80 W for 8 h.
    energy, idle = made.totals.energy_kwh, made.totals.idle_energy_kwh
    assert (energy, idle) == (pytest.approx(2.4), pytest.approx(2.4 - 0.64))
    alice = user(made)
    assert alice.energy_kwh == pytest.approx(0.64 + 0.16)
    assert alice.idle_energy_kwh == pytest.approx(0.16)


def test_all_parts_add_up_to_the_gpus_times_the_time() -> None:
    gpu = watched_gpu(BEGIN, NOW)
    watch(watched_gpu(NOW - timedelta(hours=20), NOW, 1), BEGIN, BEGIN)
    ran(gpu, BEGIN, 8)
    ran(gpu, BEGIN + timedelta(hours=4), 8, 30.0, user="bob", pid=2, start_ticks=8)

    hours = report().totals.gpu_hours

    assert hours.capacity == pytest.approx(48)
    assert hours.unknown == pytest.approx(4)
    assert hours.is_reconciled


def test_the_users_together_hold_what_the_gpus_were_held() -> None:
    gpu = watched_gpu(BEGIN, NOW)
    ran(gpu, BEGIN, 8)
    ran(gpu, BEGIN + timedelta(hours=4), 8, 30.0, user="bob", pid=2, start_ticks=8)

    made = report()

    assert sum(row.held for row in made.users) == pytest.approx(made.totals.gpu_hours.held)
    assert sum(row.used for row in made.users) == pytest.approx(made.totals.gpu_hours.used)


@pytest.mark.usefixtures("waits")
def test_the_first_hours_of_gpucoord_are_judged_too() -> None:
    gpu = watched_gpu(NOW - timedelta(hours=12), NOW)
    use = ran(gpu, NOW - timedelta(hours=10), 9)
    Incident.objects.create(
        host="box", gpu=gpu, rule="sustained", key="k", use=use, user="alice", since_at=BEGIN,
        opened_at=BEGIN, last_seen_at=NOW, text="Heavy use by alice",
    )  # fmt: skip

    made = report()

    assert [v.hours for v in made.violations] == [pytest.approx(9)]
    assert "12.0 of 24.0 h measured" in made.notes[0]
    assert [finding.text for finding in made.open_incidents] == ["Heavy use by alice"]
    assert "Open incidents:\n- Heavy use by alice" in "\n".join(tables.lines(made))


@pytest.mark.usefixtures("waits")
def test_use_that_was_measured_badly_is_no_violation() -> None:
    use = ran(watched_gpu(BEGIN, NOW), BEGIN, 12)
    use.hours.update(known_s=3600 * 0.7, sm_s=3600 * 0.69)

    made = report()
    assert (made.violations, made.heavy_use) == ((), ())


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(
    "changes",
    [{"job_ref": "7", "job_owner": "alice"}, {"user": ""}, {"uid": 116, "user": "postgres"}],
)
def test_jobs_unknown_owners_and_services_are_no_violation(changes: dict[str, Any]) -> None:
    ran(watched_gpu(BEGIN, NOW), BEGIN, 12, **changes)

    assert report().violations == ()


@pytest.mark.usefixtures("waits")
def test_an_exempt_user_is_no_violation() -> None:
    ran(watched_gpu(BEGIN, NOW), BEGIN, 12)
    Exemption.objects.create(scope="user", name="al*", from_at=BEGIN)

    assert report().violations == ()


@pytest.mark.usefixtures("waits")
def test_use_below_the_entitlement_is_no_violation() -> None:
    ran(watched_gpu(BEGIN, NOW), BEGIN, 7)

    assert report().violations == ()


@pytest.mark.usefixtures("waits")
def test_a_quota_is_what_is_expected(alice: User) -> None:
    Quota.objects.create(user=alice, share_pct=25)
    ran(watched_gpu(BEGIN, NOW), BEGIN, 7)

    assert report().violations[0].expected_pct == 25


@pytest.mark.usefixtures("waits")
def test_short_processes_of_one_program_count_together() -> None:
    gpu = watched_gpu(BEGIN, NOW)
    for hour in range(10):
        ran(gpu, BEGIN + timedelta(hours=hour), 0.9, pid=hour + 1, start_ticks=hour)

    assert [line(v) for v in report().violations] == [
        "python (10 processes, alice): 9.0 hours at >90% (expected quota: 30%)"
    ]


@pytest.mark.usefixtures("waits")
def test_many_processes_of_one_program_are_one_line() -> None:
    gpu = watched_gpu(BEGIN - 9 * DAY, NOW)
    for day in range(5):
        since = NOW - timedelta(days=day + 1)
        ran(gpu, since, 23, pid=day + 1, start_ticks=day)
    Job.objects.update(submitted_at=NOW - 9 * DAY)
    few = report(last="48h").violations

    many = report(last="5d").violations

    assert [v.pid for v in few] == [1, 2]
    assert [(v.processes, v.hours) for v in many] == [(5, pytest.approx(115))]


def test_the_three_numbers_add_up_to_100() -> None:
    gpu = watched_gpu(BEGIN, NOW)
    ran(gpu, BEGIN, 8, 50.5)
    Claim.objects.create(
        host="box", gpu_uuid=gpu_uuid(), job_ref="1", owner="bob",
        from_at=BEGIN + timedelta(hours=8), until_at=BEGIN + timedelta(hours=8.125),
    )  # fmt: skip

    parts = report().totals.whole_per_100

    assert parts is not None
    assert sum(parts) == 100


def test_a_booked_gpu_without_a_process_is_booked_empty() -> None:
    watched_gpu(BEGIN, NOW)
    Claim.objects.create(
        host="box", gpu_uuid=gpu_uuid(), job_ref="1", owner="bob", from_at=BEGIN,
        until_at=BEGIN + timedelta(hours=6),
    )  # fmt: skip

    made = report()

    assert made.totals.per_100 == (0, 0, 100)
    assert user(made, "bob").booked_empty == pytest.approx(6)


def test_other_users_are_anonymous_for_a_user() -> None:
    gpu = watched_gpu(BEGIN, NOW)
    ran(gpu, BEGIN, 12)
    ran(gpu, BEGIN + timedelta(hours=12), 6, 20.0, user="bob", pid=2, start_ticks=8)

    made = report(viewer=Viewer("bob"))

    assert [row.user for row in made.users] == ["user 1", "bob"]
    assert [use_line(v) for v in made.heavy_use] == ["process (user 1): 12.0 hours at >90%"]
    assert "alice" not in repr(made)
    assert "12345" not in repr(made)


def test_a_user_may_not_see_the_report_of_another() -> None:
    with pytest.raises(NotAllowed):
        report("user:alice", Viewer("bob"))


def test_a_group_report_needs_membership_and_the_permission(alice: User, bob: User) -> None:
    group = Group.objects.create(name="vision")
    group.user_set.add(alice, bob)
    ran(watched_gpu(BEGIN, NOW), BEGIN, 12)

    with pytest.raises(NotAllowed):
        report("group:vision", Viewer("bob"))
    bob.user_permissions.add(Permission.objects.get(codename="view_group_report"))

    assert [row.user for row in report("group:vision", Viewer("bob")).users] == ["alice"]


@pytest.mark.parametrize("scope", ["user:zoe", "group:none", "gpu:GPU-1", "host:mars"])
def test_a_scope_that_does_not_exist_is_told(scope: str) -> None:
    with pytest.raises(ScopeNotFound):
        report(scope)


def test_a_scope_of_one_user_leaves_the_totals_of_the_machine() -> None:
    gpu = watched_gpu(BEGIN, NOW)
    ran(gpu, BEGIN, 12)
    ran(gpu, BEGIN + timedelta(hours=12), 6, 20.0, user="bob", pid=2, start_ticks=8)

    made = report("user:alice")

    assert [row.user for row in made.users] == ["alice"]
    assert made.totals.gpu_hours.held == pytest.approx(18)
    assert made.totals.people.held == pytest.approx(12)


def test_waits_and_incidents_in_the_report_of_a_user_are_those_of_the_user(
    alice: User, bob: User
) -> None:
    gpu = watched_gpu(BEGIN, NOW)
    use = ran(gpu, BEGIN, 24, 0.0, user="carol")
    for owner, hours in ((alice, 1), (bob, 6)):
        waiting(owner, NOW - timedelta(hours=hours))
    Incident.objects.create(
        host="box", gpu=gpu, rule="idle_held", key="k", use=use, user="carol", since_at=BEGIN,
        opened_at=BEGIN, last_seen_at=NOW, text="Held idle",
    )  # fmt: skip

    mine, whole = report("user:alice"), report()

    for made, hours in ((mine, 1), (whole, 7)):
        assert made.totals.waited_hours == pytest.approx(hours)
        assert made.totals.waited_idle_hours == pytest.approx(hours)
        assert sum(hour for _, hour in made.waits) == pytest.approx(hours)
    assert tables.gpu_time(mine).startswith("All users of these GPUs: ")
    assert tables.gpu_time(whole) == tables.reconciliation(whole.totals.gpu_hours)
    assert mine.incidents == ()
    assert [row.incidents for row in whole.incidents] == [1]


def test_each_host_has_its_own_report_and_all_hosts_a_joint_one() -> None:
    near = watched_gpu(BEGIN, NOW, host="near")
    far = [watched_gpu(BEGIN, NOW, index, host="far") for index in (1, 2)]
    ran(near, BEGIN, 8)
    ran(far[0], BEGIN, 12, 50.0, host="far")

    of_far, joint = report("host:far"), report()

    assert of_far.totals.gpu_hours.capacity == pytest.approx(48)
    assert user(of_far).held == pytest.approx(12)
    assert user(of_far).used == pytest.approx(6)
    assert joint.totals.gpu_hours.capacity == pytest.approx(72)
    assert user(joint).held == pytest.approx(20)
    assert joint.totals.gpu_hours.is_reconciled
    assert [row.held for row in report("host:near").users] == [pytest.approx(8)]


def test_the_chart_of_shares_says_how_many_users_it_leaves_out() -> None:
    gpu = watched_gpu(BEGIN, NOW)
    for number in range(charts.MOST_USERS + 2):
        ran(gpu, BEGIN, 1, 5.0, user=f"user{number}", pid=number, start_ticks=number)
    picture = charts.shares(report(), {})

    assert picture is not None
    assert picture.caption.endswith("2 more users in the table.")


def test_the_charts_tell_users_apart_by_their_looks() -> None:
    gpu = watched_gpu(BEGIN, NOW)
    ran(gpu, BEGIN, 1, 5.0)
    ran(gpu, BEGIN + timedelta(hours=2), 1, 5.0, user="bob", pid=2, start_ticks=2)
    looks = {"alice": Look("al", colour=4), "bob": Look("bo", pattern=7)}
    made = report()

    for picture in (charts.shares(made, looks), charts.timeline(made, looks)):
        assert picture is not None
        assert 'class="u u5"' in picture.svg
        assert 'fill="#d55e00"' in picture.svg
        assert 'class="u u-n k1 d1 t0"' in picture.svg
        assert picture.svg.count('<pattern id="own-k1d1"') == 1
        assert 'fill="url(#own-k1d1)"' in picture.svg


def test_the_page_has_the_looks_of_the_other_pages_and_hides_no_two_users_behind_one_look() -> None:
    gpu = watched_gpu(BEGIN, NOW)
    for number in range(12):
        name = "alice" if not number else f"user {number}"
        ran(gpu, BEGIN, 1, 5.0, user=name, pid=number, start_ticks=number)

    people = page_context(report())["people"]

    looks = [person["css"] for person in people]
    assert f"u {look_of('alice').css}" in looks
    assert len(set(looks)) == len(looks) == 12


def test_no_data_is_said() -> None:
    made = report()

    assert made.users == ()
    assert "no readings" in made.notes[0]


def test_a_period_that_begins_within_an_hour_takes_a_part_of_it() -> None:
    gpu = watched_gpu(BEGIN - DAY, NOW)
    ran(gpu, NOW - timedelta(hours=3), 3, 50.0)
    period = periods.parse("", "2026-03-02T09:30", "2026-03-02T11:30", "UTC", NOW)

    hours = build(period, periods.scope("all"), OPERATOR, NOW).totals.gpu_hours

    assert (hours.capacity, hours.used, hours.idle_held) == (2, pytest.approx(1), pytest.approx(1))


def test_the_trend_shows_the_periods_before() -> None:
    gpu = watched_gpu(BEGIN - 2 * DAY, NOW)
    ran(gpu, BEGIN - DAY, 4, 50.0)
    ran(gpu, BEGIN, 4, 50.0, pid=2, start_ticks=8)

    trend = user(report()).trend

    assert [(point.since, point.used) for point in trend] == [(BEGIN - DAY, pytest.approx(2))]


def test_findings_of_a_user_link_to_their_incident() -> None:
    gpu = watched_gpu(BEGIN, NOW)
    use = ran(gpu, BEGIN, 12)
    incident = Incident.objects.create(
        host="box", gpu=gpu, rule="sustained", key="k", use=use, user="alice", since_at=BEGIN,
        opened_at=BEGIN, last_seen_at=BEGIN + timedelta(hours=12), text="Heavy use",
        waited_s=7200, hog_spans=[[BEGIN.timestamp(), BEGIN.timestamp() + 3600]],
    )  # fmt: skip

    alice = user(report())

    assert alice.findings[0].url == f"/incidents/{incident.pk}/"
    assert alice.overuse_hours == 1


def test_jobs_that_request_too_much_get_a_right_size(alice: User) -> None:
    gpus = [watched_gpu(NOW - DAY, NOW + DAY, index) for index in (0, 1)]
    job = running(alice, on=(0, 1), requirement=Requirement(gpus=2))
    ran(gpus[0], NOW, 3, 100.0, job_ref=str(job.pk), job_owner="alice")
    end(job, ended_at=NOW + timedelta(hours=3, seconds=2))
    period = periods.parse("24h", "", "", "UTC", NOW + timedelta(hours=4))

    made = build(period, periods.scope("all"), OPERATOR, NOW + timedelta(hours=4))

    size = user(made).right_size
    assert size is not None
    assert size.text == "requested 2 GPUs, used 1.0; 80 GiB, peak 11 GiB → 1 GPU, 16 GiB"
    assert size.advised_bytes == 16 * GIB


def test_a_section_that_fails_leaves_the_others_in_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table(key="batches", title="Batches", head=("Batch",), rows=(("1 video",),))
    monkeypatch.setattr(rows, "models", lambda *_: 1 / 0)
    monkeypatch.setattr(rows, "batches", lambda *_: table)

    assert report().sections == (table,)


def test_jobs_that_have_started_count_with_the_blocker_that_they_waited_for_longest(
    bob: User,
) -> None:
    watched_gpu(BEGIN, NOW)
    at = NOW - timedelta(hours=5)
    for number in range(2):
        job = waiting(bob, at)
        text = "".join(
            stored_blockers.log_entry(code, at + timedelta(minutes=minutes))
            for minutes, code in ((0, "GpuTaken"), (30, "Pressure"))
        )
        Job.objects.filter(pk=job.pk).update(blocker_log=text)
        place_again(job, (number,), NOW - timedelta(hours=1))
    made = report()
    normal = next(row for row in made.queue if row.jobs)
    assert (normal.jobs, normal.waiting, normal.blocker) == (2, 0, "Pressure")
    (row,) = made.blockers
    assert (row.blocker, row.jobs, row.p50_s, row.waited_hours) == ("Pressure", 2, 4 * 3600, 8)


def test_the_target_of_a_past_period_comes_from_the_ledger_of_the_days_before(
    alice: User, bob: User
) -> None:
    watched_gpu(NOW - 3 * DAY, NOW)
    HostCapacity.objects.create(host="gpubox", at=NOW, gpu_uuids=[gpu_uuid(0)])
    for owner in (alice, bob):
        waiting(owner, NOW - 3 * DAY)
    day = charging.day(NOW - 2 * DAY, "UTC").from_at
    DailyGpuUsage.objects.create(host="gpubox", owner="alice", from_at=day, outside_s=20 * 3600)
    ended = periods.parse("", "2026-02-28", "2026-03-01", "UTC", NOW)
    made = build(ended, periods.scope("all"), OPERATOR, NOW)
    targets = {row.user: row.target_pct for row in made.users}
    assert targets["alice"] is not None
    assert targets["bob"] is not None
    assert targets["alice"] < 50 < targets["bob"]
    assert targets["alice"] + targets["bob"] == pytest.approx(100)


def test_without_a_ledger_of_that_time_the_target_is_unknown(bob: User) -> None:
    watched_gpu(NOW - 3 * DAY, NOW)
    waiting(bob, NOW - 3 * DAY)
    ended = periods.parse("", "2026-02-28", "2026-03-01", "UTC", NOW)
    (row,) = build(ended, periods.scope("all"), OPERATOR, NOW).users
    assert row.target_pct is None
