from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.facts.incidents import SUSTAINED
from monitor.journal.rows import audit, events
from monitor.models import Incident
from scheduler.models import ModeState

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
AsUser = Callable[[User], Client]
DAY = "Overuse in 42 % of the last 24 h. Normal limits return below 20 %."


@pytest.fixture
def host(settings: object) -> str:
    return str(settings.CONFIG.node)  # type: ignore[attr-defined]


def state(host: str, mode: str = "defensive", reason: str = DAY) -> None:
    ModeState.objects.create(host=host, mode=mode, reason=reason, since_at=timezone.now())


def test_each_page_shows_the_mode_with_its_reason(host: str, alice: User, as_user: AsUser) -> None:
    state(host)
    for path in ("/", "/jobs/", "/processes/", "/status/"):
        page = as_user(alice).get(path).content.decode()
        assert '<a class="badge" data-shape="warning" href="/mode/"' in page
        assert DAY in page


def test_nothing_is_said_before_anything_is_known(alice: User, as_user: AsUser) -> None:
    assert '<a class="badge"' not in head(as_user(alice))


def test_nothing_is_said_in_normal_operation(host: str, alice: User, as_user: AsUser) -> None:
    state(host, "cooperative", "No hogs.")
    assert '<a class="badge"' not in head(as_user(alice))


def head(browser: Client) -> str:
    return browser.get("/jobs/").content.decode().split("</header>")[0]


def test_a_host_that_is_defensive_is_named_beside_another(
    host: str, alice: User, as_user: AsUser
) -> None:
    state(host, "cooperative", "No hogs.")
    state("other")
    assert ">defensive (other)</a>" in as_user(alice).get("/jobs/").content.decode()


def test_the_page_says_why_and_what_it_means(host: str, alice: User, as_user: AsUser) -> None:
    state(host)
    page = as_user(alice).get("/mode/").content.decode()
    assert DAY in page
    assert "more than 30 %" in page
    assert "is multiplied by 0.1 " in page
    assert "Set mode" not in page


def test_an_operator_sets_it_for_a_while(host: str, root: User, as_user: AsUser) -> None:
    state(host, "cooperative", "No hogs.")
    browser = as_user(root)
    answer = browser.post("/mode/", {"host": host, "mode": "defensive", "hours": "1"}, follow=True)
    row = ModeState.objects.get()
    assert (row.mode, row.override, row.override_by) == ("defensive", "defensive", "root")
    assert row.override_until is not None
    assert abs(row.override_until - timezone.now() - timedelta(hours=1)) < timedelta(minutes=1)
    assert "root has set it. Set by an operator until" in answer.content.decode()
    assert audit.about(f"mode {host}")[0].action == "MODE_SET"
    assert events.recent(1)[0].kind == "MODE_CHANGED"
    browser.post("/mode/", {"host": host, "mode": "automatic"})
    assert ModeState.objects.get().mode == "cooperative"


def test_only_operators_may_set_it(host: str, alice: User, as_user: AsUser) -> None:
    state(host, "cooperative")
    answer = as_user(alice).post("/mode/", {"host": host, "mode": "defensive", "hours": "1"})
    assert answer.status_code == 403
    assert ModeState.objects.get().mode == "cooperative"


@pytest.mark.parametrize("sent", [{"mode": "angry"}, {"mode": "defensive", "host": "nowhere"}])
def test_nonsense_is_refused_in_words(
    sent: dict[str, str], host: str, root: User, as_user: AsUser
) -> None:
    state(host, "cooperative")
    assert as_user(root).post("/mode/", {"hours": "1", **sent}).status_code == 422
    assert ModeState.objects.get().mode == "cooperative"


def test_rest_shows_and_sets_the_mode(host: str, alice: User, root: User, as_user: AsUser) -> None:
    state(host, "cooperative", "No hogs.")
    [line] = as_user(alice).get("/api/mode/").json()
    assert (line["mode"], line["reason"], line["set_by"]) == ("cooperative", "No hogs.", None)
    asked = {"mode": "defensive", "hours": 2}
    sent = as_user(alice).post("/api/mode/", asked, content_type="application/json")
    assert sent.status_code == 403
    sent = as_user(root).post("/api/mode/", asked, content_type="application/json")
    assert (sent.status_code, sent.json()["set_by"]) == (200, "root")
    asked["host"] = "nowhere"
    sent = as_user(root).post("/api/mode/", asked, content_type="application/json")
    assert sent.status_code == 404


def test_the_page_shows_how_much_overuse_there_was_in_each_hour(
    host: str, alice: User, as_user: AsUser
) -> None:
    now = timezone.now()
    spans = [
        [(now - timedelta(hours=begin)).timestamp(), (now - timedelta(hours=end)).timestamp()]
        for begin, end in ((4, 2), (3, 1))
    ]
    Incident.objects.create(
        host=host, rule=SUSTAINED, key="a", since_at=now, opened_at=now, last_seen_at=now,
        severity="warning", text="Overuse", hog_spans=spans,
    )  # fmt: skip
    state(host, "cooperative", "No hogs.")

    page = as_user(alice).get("/mode/").content.decode()

    # Three of 24 hours.
    assert "12 % of 100 %" in page
    assert page.count("<title>100 %</title>") == 3
    assert page.count("<title>0 %</title>") == 21
    assert "<dt>Load above 70 %</dt><dd>×0.1</dd>" in page
