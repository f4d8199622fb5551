from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.utils import timezone

from monitor.facts.accounts import TokenScope, up_to
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import AuditEntry
from monitor.owners import rows
from scheduler.facts.language_models import OWNER
from scheduler.models import TimeWindow
from tests.builders import gpu_uuid, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
Person = Callable[[User], Client]


def form(person: User, **changes: Any) -> dict[str, Any]:
    return {
        "holder": f"user:{person.pk}",
        "days": ["0", "1", "2"],
        "start": "20:00",
        "end": "06:00",
        "zone": "Europe/Berlin",
        "share_pct": "100",
        "kept": "yes",
        "reason": "nightly training",
    } | changes


def ask(browser: Client, person: User, **changes: Any) -> TimeWindow:
    assert browser.post("/windows/ask/", form(person, **changes)).status_code == 302
    return TimeWindow.objects.latest("pk")


def test_one_asks_and_an_operator_approves(alice: User, root: User, as_user: Person) -> None:
    snapshots.record(snapshot(2))
    row = ask(as_user(alice), alice, gpus=[gpu_uuid(1)])
    assert (row.user, row.days, row.gpu_uuids) == (alice, [0, 1, 2], [gpu_uuid(1)])

    as_user(root).post(
        f"/windows/{row.pk}/decide/", {"decision": "approve", "answer": "until June"}
    )

    page = as_user(alice).get("/windows/").content.decode()
    assert "Mon–Wed 20:00–06:00 (Europe/Berlin)" in page
    assert "reserves GPU 1" in page
    assert "until June" in page


def test_a_user_cannot_approve_own_requests(alice: User, as_user: Person) -> None:
    browser = as_user(alice)
    row = ask(browser, alice)

    response = browser.post(f"/windows/{row.pk}/decide/", {"decision": "approve"})

    assert response.status_code == 403
    row.refresh_from_db()
    assert row.state == "asked"


def test_a_window_of_an_operator_needs_no_approval(
    root: User, alice: User, as_user: Person
) -> None:
    browser = as_user(root)
    assert "It takes effect at once" in browser.get("/windows/ask/").text
    row = ask(browser, root, holder=f"user:{alice.pk}")

    assert (row.state, row.user, row.decided_by) == ("approved", alice, "root")
    assert AuditEntry.objects.latest("pk").action == "WINDOW_APPROVED"


def test_a_clash_of_an_operator_s_window_is_named_in_the_form(
    root: User, bob: User, as_user: Person
) -> None:
    snapshots.record(snapshot(1))
    browser = as_user(root)
    ask(browser, root)

    answer = browser.post("/windows/ask/", form(root, holder=f"user:{bob.pk}"))
    assert answer.status_code == 422
    assert "it would keep more than a whole GPU" in answer.text
    assert TimeWindow.objects.count() == 1


def test_staff_without_the_permission_only_request(bob: User, as_user: Person) -> None:
    bob.is_staff = True
    bob.save()

    assert ask(as_user(bob), bob).state == "asked"


def test_a_token_without_the_rights_of_staff_only_requests(bob: User) -> None:
    bob.is_staff = True
    bob.save()
    bob.user_permissions.add(Permission.objects.get(codename="change_timewindow"))
    body = {"days": [0], "start": "10:00", "end": "12:00"}
    states = []
    for scope in (TokenScope.SUBMIT, TokenScope.OPERATE):
        _, text = rows.create_token(bob, timezone.now(), scopes=up_to(scope))
        bearer = {"Authorization": f"Bearer {text}"}
        answer = Client().post("/api/windows/", body, "application/json", headers=bearer)
        states.append(answer.json()["state"])

    assert states == ["asked", "approved"]


def test_one_can_not_ask_for_others_or_foreign_groups(
    alice: User, bob: User, as_user: Person
) -> None:
    lab = Group.objects.create(name="lab")
    for holder in (f"user:{bob.pk}", f"group:{lab.pk}"):
        assert as_user(alice).post("/windows/ask/", form(alice, holder=holder)).status_code == 422
    assert not TimeWindow.objects.exists()


def test_what_was_typed_stays_when_something_is_wrong(alice: User, as_user: Person) -> None:
    response = as_user(alice).post(
        "/windows/ask/", form(alice, zone="Berlin", first_day="2026-03-02", last_day="2026-03-01")
    )

    page = response.content.decode()
    assert response.status_code == 422
    assert "nightly training" in page
    assert "such as Europe/Berlin" in page
    assert "not be before the first day" in page


def test_a_clash_is_said_and_nothing_approved(
    alice: User, bob: User, root: User, as_user: Person
) -> None:
    operator = as_user(root)
    for person in (alice, bob):
        row = ask(as_user(person), person)
        told = operator.post(
            f"/windows/{row.pk}/decide/", {"decision": "approve"}, follow=True
        ).content.decode()

    assert "more than a whole GPU" in told
    assert [w.state for w in TimeWindow.objects.order_by("pk")] == ["approved", "asked"]


def test_its_holder_withdraws_it(alice: User, bob: User, as_user: Person) -> None:
    row = ask(as_user(alice), alice)

    assert as_user(bob).post(f"/windows/{row.pk}/withdraw/").status_code == 404
    assert as_user(alice).post(f"/windows/{row.pk}/withdraw/").status_code == 302
    row.refresh_from_db()
    assert row.state == "withdrawn"


def test_an_empty_page_says_what_to_do(alice: User, as_user: Person) -> None:
    assert "All GPUs are open to all users" in as_user(alice).get("/windows/").content.decode()


def test_rest_asks_lists_and_withdraws(alice: User, as_user: Person) -> None:
    browser = as_user(alice)
    body = {"days": [5, 6], "start": "08:00", "end": "20:00", "zone": "UTC", "kept": False}

    made = browser.post("/api/windows/", body, content_type="application/json")
    assert made.status_code == 201
    assert made.json()["words"] == "Sat, Sun 08:00–20:00 (UTC)"
    assert [w["id"] for w in browser.get("/api/windows/?state=asked").json()] == [made.json()["id"]]
    gone = browser.post(f"/api/windows/{made.json()['id']}/withdraw/")
    assert gone.json()["state"] == "withdrawn"


def test_rest_says_what_is_wrong(alice: User, as_user: Person) -> None:
    body = {"days": [1], "start": "08:00", "end": "20:00", "zone": "Berlin", "share_pct": 50}

    answer = as_user(alice).post("/api/windows/", body, content_type="application/json")

    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == "zone"
    assert "such as Europe/Berlin" in error["message"]


def test_the_admin_approves_and_declines(alice: User, root: User, as_user: Person) -> None:
    row = ask(as_user(alice), alice)
    operator = as_user(root)

    for action, state in (("approve", "approved"), ("decline", "declined")):
        operator.post(
            "/admin/scheduler/timewindow/", {"action": action, "_selected_action": [row.pk]}
        )
        row.refresh_from_db()
        assert row.state == state


def test_the_admins_page_of_a_window_decides_with_an_answer_and_changes_nothing_else(
    alice: User, root: User, as_user: Person
) -> None:
    row = ask(as_user(alice), alice)
    operator, page = as_user(root), f"/admin/scheduler/timewindow/{row.pk}/change/"
    asked = operator.get(page).content.decode()
    assert "Mon–Wed 20:00–06:00 (Europe/Berlin)" in asked
    assert 'name="_save"' not in asked

    operator.post(page, {"answer": "only a word"})
    row.refresh_from_db()
    assert (row.state, row.answer) == ("asked", "")

    operator.post(page, {"_approved": "Approve", "answer": "until June"})
    row.refresh_from_db()
    assert (row.state, row.answer, row.decided_by) == ("approved", "until June", "root")
    assert AuditEntry.objects.get(action="WINDOW_APPROVED").by == "root"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"last_day": "2020-01-01"}, "does not occur"),
        ({"days": ["0"], "first_day": "2030-01-01", "last_day": "2030-01-03"}, "does not occur"),
        ({"reason": "x" * 1001}, "at most 1000 characters"),
    ],
)
def test_an_impossible_request_is_refused(
    changes: dict[str, Any], says: str, alice: User, as_user: Person
) -> None:
    response = as_user(alice).post("/windows/ask/", form(alice, **changes))

    assert response.status_code == 422
    assert says in response.content.decode()
    assert not TimeWindow.objects.exists()


def test_a_time_that_begins_to_count_later_is_not_over(alice: User, as_user: Person) -> None:
    row = ask(as_user(alice), alice, first_day="2099-01-05")
    TimeWindow.objects.filter(pk=row.pk).update(state="approved")

    # The time is 20:00 in Europe/Berlin; the page shows it in the zone of the browser.
    html = as_user(alice).get("/windows/").content.decode()
    assert "Mon 5 Jan 2099 19:00</time>" in html


def test_only_a_decision_decides(alice: User, root: User, as_user: Person) -> None:
    row = ask(as_user(alice), alice)

    assert as_user(root).post(f"/windows/{row.pk}/decide/", {}).status_code == 400
    row.refresh_from_db()
    assert row.state == "asked"


@time_machine.travel("2027-03-01 12:00:00+00:00", tick=False)
def test_a_time_that_does_not_exist_is_refused(alice: User, as_user: Person) -> None:
    day = {"start": "02:30", "end": "03:30", "first_day": "2027-03-28", "last_day": "2027-03-28"}

    page = as_user(alice).post("/windows/ask/", form(alice, days=["6"], **day))
    answer = as_user(alice).post(
        "/api/windows/", {"days": [6], "zone": "Europe/Berlin", **day}, "application/json"
    )

    assert (page.status_code, answer.status_code) == (422, 422)
    (error,) = answer.json()["errors"]
    assert error["field"] == "start"
    assert error["message"].startswith("02:30 does not exist on 28 March 2027 in Europe/Berlin")
    assert error["message"] in page.content.decode()


@pytest.mark.parametrize("state", ["asked", "approved", "declined", "withdrawn"])
def test_only_the_requester_and_operators_read_the_reason(
    alice: User, bob: User, root: User, as_user: Person, state: str
) -> None:
    members = Group.objects.create(name="lab")
    for person in (alice, bob):
        person.groups.add(members)
    row = ask(as_user(alice), alice, holder=f"group:{members.pk}", reason="a secret project")
    TimeWindow.objects.update(state=state, decided_at=row.asked_at)

    for person, sees in ((alice, True), (bob, False), (root, True)):
        browser = as_user(person)
        page = browser.get("/windows/").content.decode()
        (line,) = browser.get(f"/api/windows/?state={state}").json()
        assert ("a secret project" in page) is sees
        assert line["reason"] == ("a secret project" if sees else None)


def test_the_form_says_who_reads_the_reason(alice: User, as_user: Person) -> None:
    page = as_user(alice).get("/windows/ask/").content.decode()

    assert "Only you and the operators can read it." in page


def test_decisions_and_withdrawals_ask_first_and_end_with_a_toast(
    alice: User, root: User, as_user: Person
) -> None:
    row = ask(as_user(alice), alice)
    operator = as_user(root)
    page = operator.get("/windows/").content.decode()
    assert f'popovertarget="approve-{row.pk}"' in page
    assert "all GPUs will be reserved for alice in this time." in page

    page = operator.post(
        f"/windows/{row.pk}/decide/", {"decision": "approve"}, follow=True
    ).content.decode()
    words = "Mon–Wed 20:00–06:00 (Europe/Berlin)"
    assert f'<p class="toast success">Approved: {words}.</p>' in page
    assert f"Withdraw the time window {words}?" in page

    page = operator.post(f"/windows/{row.pk}/withdraw/", follow=True).content.decode()
    assert f'<p class="toast success">Withdrawn: {words}.</p>' in page


@pytest.fixture
def _monday() -> Any:
    with time_machine.travel("2026-11-23 10:00:00+00:00", tick=False):
        yield


def calendar_row(page: str, gpu: int) -> str:
    return page.split(f'<tr data-gpu="{gpu_uuid(gpu)}">')[1].split("</tr>")[0]


@pytest.mark.usefixtures("_monday")
def test_the_calendar_shows_each_gpu_and_day_in_the_viewers_zone(
    alice: User, root: User, as_user: Person
) -> None:
    snapshots.record(snapshot(2))
    row = ask(as_user(alice), alice, days=["1"], zone="UTC", gpus=[gpu_uuid(1)])
    browser = as_user(root)
    browser.cookies["timezone"] = "Europe/Berlin"
    page = browser.get("/windows/").content.decode()
    assert "GPU 1, Tue 24: alice 21:00–24:00 (pending). Request" in calendar_row(page, 1)

    browser.post(f"/windows/{row.pk}/decide/", {"decision": "approve"})
    page = browser.get("/windows/").content.decode()
    assert "GPU 1, Tue 24: alice 21:00–24:00. Request" in calendar_row(page, 1)
    assert "GPU 1, Wed 25: alice 00:00–07:00. Request" in calendar_row(page, 1)
    assert "GPU 0, Tue 24: free. Request" in calendar_row(page, 0)
    assert "alice 21:00–24:00 (20:00–23:00 UTC). Request" in calendar_row(page, 1)
    assert "alice 00:00–07:00 (Tue 23:00–06:00 UTC). Request" in calendar_row(page, 1)
    assert calendar_row(page, 1).count(">al</text>") == 1
    assert calendar_row(page, 1).count(">alice</text>") == 1
    assert 'title="2026-11-23 23:00 to 2026-11-24 23:00 UTC">Tue 24</th>' in page
    assert "<title>Tue 24 21:00–07:00 (20:00–Wed 06:00 UTC)</title>" in page
    assert "Tue 1: alice" in browser.get("/windows/?week=1").content.decode()


@pytest.mark.usefixtures("_monday")
@pytest.mark.parametrize(
    ("zone", "words"),
    [
        ("UTC", "<strong>every day 20:00–06:00 (UTC)</strong>"),
        (
            "Asia/Tokyo",
            "<strong>every day 05:00–15:00 (Asia/Tokyo)</strong>"
            ' <span class="muted small">requested as every day 20:00–06:00 (UTC)</span>',
        ),
    ],
)
def test_the_times_of_a_window_are_in_the_viewers_zone(
    zone: str, words: str, alice: User, as_user: Person
) -> None:
    visitor = as_user(alice)
    ask(visitor, alice, days=[str(day) for day in range(7)], zone="UTC")
    visitor.cookies["timezone"] = zone

    assert words in visitor.get("/windows/").content.decode()


def test_a_request_that_cannot_be_approved_shows_the_conflict(
    alice: User, bob: User, root: User, as_user: Person
) -> None:
    snapshots.record(snapshot(2))
    first = ask(as_user(alice), alice, gpus=[gpu_uuid(0)])
    as_user(root).post(f"/windows/{first.pk}/decide/", {"decision": "approve"})
    ask(as_user(bob), bob, start="22:00", gpus=[gpu_uuid(0)])
    ask(as_user(bob), bob, gpus=[gpu_uuid(1)])

    page = as_user(root).get("/windows/").content.decode()

    assert "Conflicts with alice, Mon–Wed 20:00–06:00 (Europe/Berlin)" in page
    assert "clash" in calendar_row(page, 0)
    assert "clash" not in calendar_row(page, 1)


def test_a_cell_of_the_calendar_fills_the_form(alice: User, as_user: Person) -> None:
    snapshots.record(snapshot(2))
    browser = as_user(alice)
    cell = calendar_row(browser.get("/windows/").content.decode(), 1).split('href="')[1]
    page = browser.get(cell.split('"')[0].replace("&amp;", "&")).content.decode()

    assert 'value="09:00"' in page
    assert 'value="17:00"' in page
    assert page.count(" checked") == 3  # the GPU, the day and the type


@pytest.mark.parametrize(
    "query",
    ["days=9&gpus=none", "start=25:00&end=<b>", "start=20:00%0A", "week=99999999999999999999"],
)
def test_hostile_values_in_the_address_are_ignored(
    query: str, alice: User, as_user: Person
) -> None:
    for path in ("/windows/", "/windows/ask/"):
        response = as_user(alice).get(f"{path}?{query}")
        assert response.status_code == 200
        assert "<b>" not in response.content.decode().split("<main")[1].split("</main>")[0]


def test_no_window_can_be_requested_for_the_user_of_model_services(
    alice: User, root: User, as_user: Person
) -> None:
    models = User.objects.create_user(OWNER)
    key = f"user:{models.pk}"

    offered = as_user(root).get("/windows/ask/").content.decode()
    refused = as_user(root).post("/windows/ask/", form(alice, holder=key))

    assert key not in offered
    assert refused.status_code == 422
    assert "stands for model services, which have no time windows" in refused.content.decode()
    assert not TimeWindow.objects.exists()


def test_rest_refuses_a_window_of_the_user_of_model_services() -> None:
    models = User.objects.create_user(OWNER)
    _, token = rows.create_token(models, timezone.now())
    body = {"days": [0], "start": "20:00", "end": "06:00"}

    answer = Client().post(
        "/api/windows/",
        body,
        content_type="application/json",
        headers={"authorization": f"Bearer {token}"},
    )

    assert answer.status_code == 422
    assert "stands for model services, which have no time windows" in answer.content.decode()
    assert not TimeWindow.objects.exists()


def test_an_older_request_for_model_services_can_not_be_approved(
    alice: User, root: User, as_user: Person
) -> None:
    row = ask(as_user(alice), alice)
    row.user = User.objects.create_user(OWNER)
    row.save()

    page = as_user(root).post(f"/windows/{row.pk}/decide/", {"decision": "approve"}, follow=True)

    row.refresh_from_db()
    assert row.state == "asked"
    assert "which have no time windows" in page.content.decode()
