"""Thresholds: changed by operators, read by everybody."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace

from monitor.admin.records import address
from monitor.gpus.policy.presence import PresencePolicy
from monitor.journal.rows import audit
from monitor.models import AuditEntry, Host, PolicyValues
from monitor.thresholds import rows as monitor_rows
from monitor.thresholds.pages import PolicyForm
from monitor.thresholds.policy import thresholds

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
Browse = Callable[[User], Client]


@pytest.fixture
def browser(root: User, as_user: Browse) -> Client:
    return as_user(root)


def posted(**changes: Any) -> dict[str, Any]:
    """The form as the page shows it, with changes; a box that is not ticked is not sent."""
    form = PolicyForm("presence", monitor_rows.ThresholdsInForce().settings("presence"))
    values = {name: form[name].value() for name in form.fields if not name.startswith("back:")}
    sent = {**values, **changes}
    return {name: value for name, value in sent.items() if value not in (None, False)}


def change(browser: Client, **changes: Any) -> str:
    answer = browser.post(address("presence"), posted(**changes), follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def test_every_policy_has_a_page_that_opens(browser: Client) -> None:
    overview = browser.get("/admin/monitor/policyvalues/").content.decode()

    for name in monitor_rows.registered():
        assert address(name) in overview
        html = browser.get(address(name)).content.decode()
        assert "Default:" in html
        assert f"[policy.{name}]" in html


def test_every_policy_can_be_sent_as_it_is_shown_and_nothing_changes(browser: Client) -> None:
    for name in monitor_rows.registered():
        form = PolicyForm(name, monitor_rows.ThresholdsInForce().settings(name))
        shown = {field: form[field].value() for field in form.fields}
        sent = {k: v for k, v in shown.items() if v not in (None, False)}

        html = browser.post(address(name), sent, follow=True).content.decode()

        assert "Nothing was changed." in html, name
    assert not PolicyValues.objects.exists()


def test_a_change_counts_and_is_audited(browser: Client) -> None:
    html = change(browser, clear_s="90", exclusive="game\nobs, doom", enabled="on")

    found = monitor_rows.current(PresencePolicy)
    assert (found.clear_s, found.exclusive, found.enabled) == (90.0, ("game", "obs", "doom"), True)
    assert "changed here: <strong>90 s</strong>" in html
    (entry,) = audit.about("policy presence")
    assert (entry.by, entry.before) == ("root", {})
    assert entry.after == {"clear_s": 90.0, "exclusive": ["game", "obs", "doom"], "enabled": True}


def test_a_value_for_one_host_is_set_in_its_form_and_shown_to_all(
    browser: Client, settings: Any
) -> None:
    host = settings.CONFIG.node
    Host.objects.create(name=host, joined_at=timezone.now())
    form = address("presence", host)

    browser.post(form, posted(clear_s="90"))

    assert monitor_rows.current(PresencePolicy).clear_s == 90.0
    assert PolicyValues.objects.get().values == {}
    assert "changed here: <strong>90 s</strong>" in browser.get(form).content.decode()
    for page in (address("presence"), "/admin/monitor/policyvalues/", "/rules/"):
        text = re.sub("<[^>]*>", "", unescape(browser.get(page).content.decode()))
        assert f"{host}: 90 s" in text or f"90 s ({host})" in text
    listed = browser.get("/api/policies/").json()["policies"]
    presence = next(each for each in listed if each["name"] == "presence")
    assert {"clear_s": {host: 90.0}}.items() <= {
        each["name"]: each["hosts"] for each in presence["settings"]
    }.items()


def test_an_unknown_host_has_no_form(browser: Client) -> None:
    assert browser.get(address("presence", "nowhere")).status_code == 404


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("clear_s", "-1", "It must be a number from 0 to 3600."),
        ("clear_s", "soon", "Enter a number."),
        ("clear_s", "", "This field is required."),
        ("yields", "everybody", "Select a valid choice."),
        ("exclusive", "gnome-shell", "Gnome-shell is in both lists of programs."),
    ],
)
def test_what_can_not_be_is_refused_beside_its_field_and_kept_as_typed(
    browser: Client, field: str, value: str, says: str
) -> None:
    html = change(browser, **{field: value})

    assert says in html
    assert "Nothing was changed" in html
    assert not AuditEntry.objects.exists()
    if field != "yields":
        assert value in html


def test_a_threshold_goes_back_by_its_box_or_by_typing_what_is_below(browser: Client) -> None:
    change(browser, clear_s="90", max_grace_s="5")
    assert monitor_rows.changes("presence") == {"max_grace_s": 5.0, "clear_s": 90.0}

    change(browser, **{"back:clear_s": "on", "max_grace_s": "2"})

    assert monitor_rows.changes("presence") == {}
    assert monitor_rows.current(PresencePolicy) == PresencePolicy()


def test_below_a_change_the_page_shows_what_the_file_and_the_product_say(
    browser: Client, settings: Any
) -> None:
    tables = {"presence": {"clear_s": 75.0}}
    settings.CONFIG = replace(settings.CONFIG, policy=tables, profile="desktop")
    html = change(browser, clear_s="90")

    assert "Default: <strong>60 s</strong>" in html
    assert "gpucoord.toml: <strong>75 s</strong>" in html
    assert "profile desktop: <strong>yes</strong>" in html
    assert monitor_rows.changes("presence") == {"clear_s": 90.0}


def test_only_who_may_change_policies_does(bob: User, as_user: Browse) -> None:
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    browser = as_user(bob)
    assert browser.get(address("presence")).status_code == 403
    assert browser.get("/admin/monitor/policyvalues/").status_code == 403

    bob.user_permissions.add(Permission.objects.get(codename="view_policyvalues"))
    assert browser.get(address("presence")).status_code == 200
    assert browser.post(address("presence"), posted(clear_s="90")).status_code == 403

    bob.user_permissions.add(Permission.objects.get(codename="change_policyvalues"))
    assert browser.post(address("presence"), posted(clear_s="90")).status_code == 302
    assert audit.about("policy presence")[0].by == "bob"


def test_a_policy_that_is_none_has_no_page(browser: Client) -> None:
    assert browser.get(address("nonsense")).status_code == 404


def test_everybody_reads_the_rules_here(alice: User, as_user: Browse, settings: Any) -> None:
    settings.CONFIG = replace(settings.CONFIG, profile="desktop")
    html = as_user(alice).get("/rules/").content.decode()

    for name, kind in monitor_rows.registered().items():
        assert f'id="{name}"' in html
        for threshold in thresholds(kind).values():
            assert threshold.label in unescape(html)
    assert "a workstation" in html
    assert '<b>yes</b><span class="muted small">default: no</span>' in html
    assert "/admin/" not in html


@pytest.mark.parametrize(
    "reason",
    [
        "Daily GPU-minutes are a fixed budget",
        "Requests of a pod reserve nothing",
        "load outside the queue must not stop the queue",
        "those of a gpucoord.toml apply to its host",
    ],
)
def test_the_rules_give_the_reason_where_a_limit_does_not_apply(
    reason: str, alice: User, as_user: Browse
) -> None:
    html = unescape(as_user(alice).get("/rules/").content.decode())

    assert reason.lower() in re.sub("<[^>]*>", "", html).lower()


def test_what_differs_from_the_defaults_comes_first(alice: User, as_user: Browse) -> None:
    PolicyValues.objects.create(name="presence", values={"clear_s": 90})
    html = as_user(alice).get("/rules/").content.decode()

    first = html.index("Different from the defaults")
    assert first < html.index("90 s", first) < html.index('class="rules"')


def test_the_rules_are_searched_by_all_words(alice: User, as_user: Browse) -> None:
    html = as_user(alice).get("/rules/", {"q": "disk CLEAN"}).content.decode()

    assert "Clean up above" in html
    assert 'id="presence"' not in html
    assert "No threshold matches" in as_user(alice).get("/rules/?q=zebra").content.decode()


def test_a_stranger_reads_no_rules(client: Client) -> None:
    assert client.get("/rules/").status_code == 302
