from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.facts.incidents import CPU_HOG, FAIR_SHARE, IDLE_HELD, ORPHANED, SUSTAINED, TITLES
from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents import pages
from monitor.incidents import rows as open_incidents
from monitor.incidents.policy.findings import ExemptionRule
from monitor.models import (
    AuditEntry,
    Channel,
    Event,
    Exemption,
    Gpu,
    Incident,
    Message,
    ProcessMinute,
    Response,
)
from tests.builders import gpu_uuid, snapshot
from tests.monitor.past import process_use

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]


def made(**changes: Any) -> Incident:
    """Alice's, open for an hour; bob's job waited."""
    now = timezone.now()
    facts: dict[str, Any] = {
        "host": "gpubox",
        "gpu_id": gpu_uuid(0),
        "rule": SUSTAINED,
        "key": f"key {Incident.objects.count()}",
        "pid": 4200001,
        "start_ticks": 7,
        "program": "python",
        "user": "alice",
        "since_at": now - timedelta(hours=1),
        "opened_at": now - timedelta(minutes=50),
        "last_seen_at": now,
        "peak_pct": 99.0,
        "mean_pct": 95.0,
        "coverage": 0.98,
        "waiting": ["7"],
        "waited_jobs": 1,
        "waited_s": 2460.0,
        "hog_spans": [[(now - timedelta(hours=1)).timestamp(), now.timestamp()]],
        "severity": "warning",
        "text": "Detected GPU hog: python (PID 4200001, alice) at 95 % on GPU 0",
    }
    return Incident.objects.create(**(facts | changes))


@pytest.fixture(autouse=True)
def _seen() -> None:
    snapshots.record(snapshot(2, at=timezone.now()))


def get(client: Client, path: str, status: int = 200, **query: str) -> str:
    response = client.get(path, query)
    assert response.status_code == status, response.content
    return response.content.decode()


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, "110"),
        ({"state": "closed"}, "001"),
        ({"state": "all"}, "111"),
        ({"rule": IDLE_HELD}, "010"),
        ({"person": "alice", "state": "all"}, "101"),
        ({"gpu": gpu_uuid(1)}, "010"),
        ({"range": "1h", "state": "all"}, "110"),
        ({"state": "?", "rule": "nonsense", "page": "x"}, "110"),
    ],
)
def test_the_list_is_filtered_by_the_address(
    query: dict[str, str], wanted: str, alice: User, as_user: AsUser
) -> None:
    old = timezone.now() - timedelta(days=2)
    made(text="the first")
    made(text="the second", rule=IDLE_HELD, user="bob", gpu_id=gpu_uuid(1))
    made(text="the third", closed_at=old, opened_at=old, since_at=old, last_seen_at=old)
    html = get(as_user(alice), "/incidents/", **query)
    shown = [text in html for text in ("the first", "the second", "the third")]
    assert shown == [digit == "1" for digit in wanted]


def test_the_worst_come_first(alice: User, as_user: AsUser) -> None:
    made(text="harmless", severity="info")
    made(text="serious", severity="error")
    html = get(as_user(alice), "/incidents/")
    assert html.index("serious") < html.index("harmless")


def test_the_gpus_of_a_rule_are_told_together(alice: User, as_user: AsUser) -> None:
    snapshots.record(snapshot(12, at=timezone.now()))
    lead = made(gpu_id=gpu_uuid(0))
    for number in range(1, 12):
        made(gpu_id=gpu_uuid(number), lead=lead)
    made(gpu_id=gpu_uuid(3), lead=lead, rule="idle_held", closed_at=timezone.now())

    page = as_user(alice).get("/incidents/").content.decode()

    chips = re.findall(r'<span class="chip">([^<]* on [^<]*)</span>', page)
    assert [chip.split(" on ")[1] for chip in chips] == [
        "GPUs 1, 2, 3, 4, 5, 6, 7, 8 and 3 more",
        "GPU 3 (over)",
    ]


def test_the_part_that_delays_others_is_described_first(alice: User, as_user: AsUser) -> None:
    waits_for = {"waited_jobs": 0, "waited_s": 0.0, "text": "GPU hog: on GPU 0; no job waits"}
    lead = made(gpu_id=gpu_uuid(0), **waits_for)
    made(gpu_id=gpu_uuid(1), lead=lead, text="GPU hog: on GPU 1; 1 job waited 41 min")

    page = get(as_user(alice), "/incidents/")
    shown = pages.REGION.load(timezone.now())["lines"]

    assert f'<a href="/incidents/{lead.pk}/">on GPU 1; 1 job waited 41 min</a>' in page
    assert "no job waits" not in page
    assert "GPU hog on GPU 0" in page
    assert [(row.pk, text) for row, text, _ in shown] == [
        (lead.pk, "GPU hog: on GPU 1; 1 job waited 41 min; also on 1 other GPU")
    ]


def test_an_empty_list_says_so(alice: User, as_user: AsUser) -> None:
    assert "No open incidents" in get(as_user(alice), "/incidents/")


def test_its_page_says_who_what_how_long_how_sure_and_whom_it_harmed(
    alice: User, as_user: AsUser
) -> None:
    row = made(measured_pct=47.5, expected_pct=70.0)
    html = get(as_user(alice), f"/incidents/{row.pk}/")
    for words in (row.text, "1 h", "95 %", "99 %", "48 %", "70 %", "98 %", "41 min", "Suggestion:"):
        assert words in html, words


def test_the_evidence_has_its_threshold_as_a_band_and_what_is_unknown_as_a_gap(
    alice: User, as_user: AsUser
) -> None:
    row = made()
    begin = row.since_at.replace(second=0, microsecond=0)
    use = process_use(row.gpu, begin)  # type: ignore[arg-type]
    use.last_seen_at = timezone.now()
    use.save()
    for minute in (0, 1, 2, 10, 11):
        t = int((begin + timedelta(minutes=minute)).timestamp()) // 60 * 60
        ProcessMinute.objects.create(use=use, t=t, sm_s=57, held_s=60, known_s=60)
    html = get(as_user(alice), f"/incidents/{row.pk}/")
    assert 'class="band"' in html
    assert 'class="gap"' in html
    assert "threshold 80 %" in html
    assert html.count(">began<") == html.count('class="plot-field"') == 2
    assert ">ended<" not in html
    assert "Show as table" in html


@pytest.mark.parametrize("rule", sorted(TITLES))
def test_each_rule_has_a_page(rule: str, root: User, as_user: AsUser) -> None:
    has_gpu = rule != CPU_HOG
    row = made(
        rule=rule,
        gpu_id=gpu_uuid(0) if has_gpu else None,
        job_ref="4" if "un" in rule or "over" in rule else "",
        pid=None if rule == ORPHANED else 5,
        user="" if rule == ORPHANED else "alice",
        expected_pct=70.0 if rule == FAIR_SHARE else None,
        hog_spans=[],
    )
    assert TITLES[rule].replace("'", "&#x27;") in get(as_user(root), f"/incidents/{row.pk}/")


def test_others_see_that_it_is_but_not_its_evidence(bob: User, as_user: AsUser) -> None:
    row = made(explanation="my secret deadline")
    browser = as_user(bob)
    assert row.text in get(browser, "/incidents/")
    html = get(browser, f"/incidents/{row.pk}/", 403)
    assert "my secret deadline" not in html
    assert "Evidence" not in html


@pytest.mark.parametrize("action", ["acknowledge", "snooze", "exempt", "close", "write"])
def test_others_can_do_nothing_about_it(action: str, bob: User, as_user: AsUser) -> None:
    row = made()
    response = as_user(bob).post(f"/incidents/{row.pk}/{action}/", {"hours": "8"})
    assert response.status_code == 403
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("action", ["snooze", "exempt", "close", "write"])
def test_its_owner_can_not_act_as_an_operator(action: str, alice: User, as_user: AsUser) -> None:
    row = made()
    answer = as_user(alice).post(f"/incidents/{row.pk}/{action}/", {"hours": "8", "days": "7"})
    assert answer.status_code == 403


def test_its_owner_acknowledges_and_explains(alice: User, root: User, as_user: AsUser) -> None:
    row = made()
    as_user(alice).post(f"/incidents/{row.pk}/acknowledge/", {"explanation": "Due on Friday."})
    row.refresh_from_db()
    assert (row.acknowledged_by, row.explanation) == ("alice", "Due on Friday.")
    assert "Acknowledged by alice, " in get(as_user(root), f"/incidents/{row.pk}/")


def test_an_operator_snoozes_it_and_it_counts_as_no_hog(root: User, as_user: AsUser) -> None:
    row, now = made(), timezone.now()
    as_user(root).post(f"/incidents/{row.pk}/snooze/", {"hours": "8"})
    assert open_incidents.hogs_on("gpubox", now) == set()
    assert open_incidents.hogs_on("gpubox", now + timedelta(hours=9)) == {gpu_uuid(0)}
    as_user(root).post(f"/incidents/{row.pk}/snooze/", {"hours": "0"})
    assert open_incidents.hogs_on("gpubox", now) == {gpu_uuid(0)}
    assert AuditEntry.objects.filter(subject=f"incident {row.pk}").count() == 2


def test_an_operator_mails_the_owner_the_text_that_the_page_proposes(
    alice: User, root: User, as_user: AsUser
) -> None:
    row = made()
    User.objects.filter(pk=alice.pk).update(email="alice@example.org")
    Channel.objects.create(name="mail", to_owners=True, encrypted_address="x")
    page = get(as_user(root), f"/incidents/{row.pk}/")
    as_user(root).post(f"/incidents/{row.pk}/write/", {"text": "Please end it by noon."})

    message = Message.objects.get()
    assert "python has kept GPU 0 95 % busy" in page
    assert (message.receiver, message.text) == ("alice@example.org", "Please end it by noon.")
    assert "root wrote to alice: Please end it by noon." in get(
        as_user(root), f"/incidents/{row.pk}/"
    )


def test_without_a_way_to_the_owner_the_page_says_why_and_nothing_is_sent(
    root: User, as_user: AsUser
) -> None:
    row = made()
    page = get(as_user(root), f"/incidents/{row.pk}/")
    as_user(root).post(f"/incidents/{row.pk}/write/", {"text": "Hello."})

    assert "There is no channel that mails owners, so gpucoord cannot send it." in page
    assert not Message.objects.exists()


def test_users_see_why_incidents_of_others_are_no_links(
    bob: User, root: User, as_user: AsUser
) -> None:
    made()
    words = "Only your own incidents are links"

    assert words in get(as_user(bob), "/incidents/")
    assert words not in get(as_user(root), "/incidents/")


def test_an_incident_closed_by_an_operator_stays_closed_while_the_use_lasts(
    root: User, as_user: AsUser
) -> None:
    row = made()
    as_user(root).post(f"/incidents/{row.pk}/close/", {"reason": "agreed"})
    row.refresh_from_db()
    assert (row.closed_by, row.is_muted) == ("root", True)
    assert "root closed the incident: agreed" in get(as_user(root), f"/incidents/{row.pk}/")
    assert Event.objects.get(kind="INCIDENT_CLOSED").owner == "alice"


@pytest.mark.parametrize(
    ("form", "name", "rule"),
    [
        ({"scope": "user", "days": "7"}, "alice", SUSTAINED),
        ({"scope": "program", "days": "", "rules": "all"}, "python", ""),
    ],
)
def test_an_operator_exempts_until_a_time_and_ends_that_again(
    form: dict[str, str], name: str, rule: str, root: User, as_user: AsUser
) -> None:
    row, browser = made(), as_user(root)
    browser.post(f"/incidents/{row.pk}/exempt/", form | {"reason": "a demo"})
    exempted = Exemption.objects.get()
    assert (exempted.name, exempted.rule, exempted.by) == (name, rule, "root")
    assert (exempted.until_at is None) is (form["days"] == "")
    row.refresh_from_db()
    assert row.closed_at is not None
    assert "a demo" in get(browser, "/incidents/")
    browser.post(f"/exemptions/{exempted.pk}/end/")
    assert "a demo" not in get(browser, "/incidents/")
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert actions == {"INCIDENT_EXEMPTED", "INCIDENT_CLOSED", "EXEMPTION_ENDED"}


def test_all_that_an_exemption_covers_is_closed_with_it(root: User, as_user: AsUser) -> None:
    row, same = made(), made(gpu_id=gpu_uuid(1))
    other, stranger = made(rule=IDLE_HELD), made(user="bob")

    as_user(root).post(f"/incidents/{row.pk}/exempt/", {"scope": "user", "days": "7"})

    still_open = set(open_incidents.open_rows().values_list("pk", flat=True))
    assert still_open == {other.pk, stranger.pk}
    said = AuditEntry.objects.filter(subject=f"incident {same.pk}").values_list("text", flat=True)
    assert list(said) == ["root closed the incident: exempt"]


def test_a_program_named_star_exempts_no_other_program(root: User, as_user: AsUser) -> None:
    row, other = made(program="*"), made()

    as_user(root).post(f"/incidents/{row.pk}/exempt/", {"scope": "program", "days": "7"})

    exempted = ExemptionRule("program", Exemption.objects.get().name)
    assert (exempted.fits("", "*", ""), exempted.fits("", "python", "")) == (True, False)
    assert open_incidents.open_rows().get() == other


def test_a_user_that_the_incident_does_not_name_cannot_be_exempted(
    root: User, as_user: AsUser
) -> None:
    row = made()
    as_user(root).post(f"/incidents/{row.pk}/exempt/", {"scope": "container", "days": "7"})
    assert not Exemption.objects.exists()


def test_me_leads_to_ones_own_page(alice: User, as_user: AsUser) -> None:
    assert as_user(alice).get("/me/")["Location"] == "/users/alice/"


def test_closing_and_exempting_ask_first_and_end_with_a_toast(root: User, as_user: AsUser) -> None:
    row, browser = made(), as_user(root)
    page = get(browser, f"/incidents/{row.pk}/")
    assert 'popovertarget="close-incident"' in page
    assert 'popovertarget="add-exemption"' in page

    sent = browser.post(f"/incidents/{row.pk}/close/", {"reason": "agreed"}, follow=True)
    assert f'<p class="toast success">Incident {row.pk} is closed.</p>' in sent.content.decode()

    sent = browser.post(f"/incidents/{row.pk}/exempt/", {"scope": "user", "days": "7"}, follow=True)
    assert "The user alice is exempt" in sent.content.decode()
    assert 'popovertarget="end-exemption-' in get(browser, "/incidents/")


def test_acknowledging_and_muting_end_with_a_toast(root: User, as_user: AsUser) -> None:
    row, browser = made(), as_user(root)
    actions = (("acknowledge", {"explanation": "deadline"}), ("snooze", {"hours": "8"}))
    said = [
        browser.post(f"/incidents/{row.pk}/{action}/", fields, follow=True).content.decode()
        for action, fields in actions
    ]

    assert f'<p class="toast success">Incident {row.pk} is acknowledged.</p>' in said[0]
    assert f'<p class="toast success">Incident {row.pk} is muted for 8 h.</p>' in said[1]


def test_operators_cancel_the_job_of_an_incident_after_a_question(
    alice: User, root: User, as_user: AsUser
) -> None:
    path = f"/incidents/{made(job_ref='4', job_owner='alice').pk}/"

    assert 'href="/jobs/4/cancel/">Cancel job 4</a>' in get(as_user(root), path)
    assert "/jobs/4/cancel/" not in get(as_user(alice), path)


def test_an_operator_ends_the_process_that_the_page_names(
    alice: User, root: User, as_user: AsUser
) -> None:
    use = process_use(Gpu.objects.get(uuid=gpu_uuid(0)), timezone.now(), uid=1001)
    row, shown = made(use=use), {"pid": "4200001", "start_ticks": "7"}
    path = f"/incidents/{row.pk}/end/"
    browser = as_user(root)
    assert "End python 4200001 of alice?" in get(browser, f"/incidents/{row.pk}/")
    assert as_user(alice).post(path, shown).status_code == 403
    for other in ("8", "-7", "", "7e0", "9" * 5000):
        assert browser.post(path, shown | {"start_ticks": other}).status_code == 302
    assert not Response.objects.exists()
    browser.post(path, shown)
    response = Response.objects.get()
    assert (response.step, response.state, response.by) == ("terminate", "planned", "root")


@pytest.mark.parametrize(("state", "looks_again"), [("planned", True), ("done", False)])
def test_the_page_looks_again_until_the_signal_is_sent(
    state: str, looks_again: bool, root: User, as_user: AsUser
) -> None:
    row = made()
    Response.objects.create(
        incident=row, step="terminate", is_dry_run=False, state=state, at=timezone.now(), by="root"
    )
    page = get(as_user(root), f"/incidents/{row.pk}/")
    assert ('hx-select-oob="#ending:outerMorph"' in page) is looks_again


def test_after_sigterm_the_page_offers_sigkill(root: User, as_user: AsUser) -> None:
    use = process_use(Gpu.objects.get(uuid=gpu_uuid(0)), timezone.now(), uid=1001)
    row = made(use=use)
    before = {"process": {"pid": 4200001, "start_ticks": 7}}
    Response.objects.create(
        incident=row, step="terminate", is_dry_run=False, state="done", at=timezone.now(),
        before=before, by="root",
    )  # fmt: skip
    assert "Send SIGKILL" in get(as_user(root), f"/incidents/{row.pk}/")


def test_the_page_says_why_a_process_is_not_ended(root: User, as_user: AsUser) -> None:
    row = made(user="")
    page = get(as_user(root), f"/incidents/{row.pk}/")
    assert "gpucoord does not end this process. Its owner is unknown." in page
    assert "End process" not in page
