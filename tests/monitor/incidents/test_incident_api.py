from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents import actions
from monitor.models import Exemption, Gpu, Incident, Message
from monitor.owners import rows
from tests.builders import NOW, gpu_uuid, snapshot
from tests.monitor import past
from tests.monitor.alerts_made import channel
from tests.pages.test_incidents_page import made

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _seen() -> None:
    snapshots.record(snapshot(2))


def call(user: User, path: str = "", body: dict[str, Any] | None = None, **query: str) -> Any:
    headers = {"authorization": f"Bearer {rows.create_token(user, NOW)[1]}"}
    address = f"/api/incidents/{path}"
    if body is None:
        return Client().get(address, query, headers=headers)
    return Client().post(address, body, content_type="application/json", headers=headers)


def test_incidents_are_listed_as_the_page_has_them(alice: User) -> None:
    made(text="harmless", severity="info", job_ref="")
    made(text="serious", severity="error")
    made(text="over", closed_at=NOW)
    found = call(alice).json()["incidents"]
    assert [entry["text"] for entry in found] == ["serious", "harmless"]
    assert found[0]["lasts_s"] == 3600
    assert found[1]["job"] is None
    assert [e["text"] for e in call(alice, state="closed").json()["incidents"]] == ["over"]


def test_only_the_owner_and_operators_read_the_explanation(
    alice: User, bob: User, root: User
) -> None:
    row = made()
    answer = call(alice, f"{row.pk}/acknowledge/", {"explanation": "Due on Friday."})
    assert answer.status_code == 200
    read = [call(who, f"{row.pk}/").json()["explanation"] for who in (alice, bob, root)]
    assert read == ["Due on Friday.", None, "Due on Friday."]


@pytest.mark.parametrize(
    ("path", "body"), [("snooze/", {"hours": 8}), ("close/", {"reason": "agreed"})]
)
def test_operators_snooze_and_close(
    path: str, body: dict[str, Any], alice: User, root: User
) -> None:
    row = made()
    assert call(alice, f"{row.pk}/{path}", body).status_code == 403
    assert call(root, f"{row.pk}/{path}", body).status_code == 200
    row = Incident.objects.get()
    assert (row.snoozed_until or row.closed_at) is not None


def test_others_explain_nothing(bob: User) -> None:
    row = made()
    assert call(bob, f"{row.pk}/acknowledge/", {"explanation": "no"}).status_code == 403


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"until": "2126-01-01T12:00Z"}, 200),
        ({"scope": "program", "all_rules": True}, 200),
        ({"scope": "container"}, 422),
        ({"scope": "everybody"}, 422),
        ({"until": "2020-01-01T12:00Z"}, 422),
        ({"until": "2126-01-01T12:00"}, 422),
    ],
)
def test_operators_exempt_whom_the_incident_names(
    body: dict[str, Any], status: int, alice: User, root: User
) -> None:
    row = made()
    assert call(alice, f"{row.pk}/exempt/", body).status_code == 403 or status == 422
    answer = call(root, f"{row.pk}/exempt/", body)
    assert answer.status_code == status
    assert Exemption.objects.count() == (status == 200)
    assert (Incident.objects.get().closed_at is not None) == (status == 200)


def test_rules_and_gpus_are_facets_of_one_incident(alice: User) -> None:
    lead = made(gpu_id=gpu_uuid(0))
    made(gpu_id=gpu_uuid(1), lead=lead)
    made(gpu_id=gpu_uuid(1), lead=lead, rule="memory_hog")
    (found,) = call(alice).json()["incidents"]
    assert (found["id"], found["rule"]) == (lead.pk, "sustained")
    assert found["rules"] == ["sustained", "memory_hog"]
    assert found["gpus"] == [gpu_uuid(0), gpu_uuid(1)]
    assert len(found["facets"]) == 3
    again = call(alice, gpu=gpu_uuid(1), rule="memory_hog").json()["incidents"]
    assert [entry["id"] for entry in again] == [lead.pk]
    assert call(alice, rule="leak").json()["incidents"] == []


def test_closing_an_incident_closes_its_facets(root: User) -> None:
    lead = made(gpu_id=gpu_uuid(0))
    made(gpu_id=gpu_uuid(1), lead=lead)
    actions.close(lead, "root", timezone.now())
    assert not Incident.objects.filter(closed_at__isnull=True).exists()
    assert Incident.objects.filter(is_muted=True).count() == 2


def test_an_exemption_from_one_rule_leaves_the_other_facets_open(root: User) -> None:
    lead = made(gpu_id=gpu_uuid(0))
    facet = made(gpu_id=gpu_uuid(1), lead=lead, rule="idle_held")
    actions.exempt(lead, "user", None, "root", timezone.now())
    (row,) = Incident.objects.filter(closed_at__isnull=True)
    assert (row.pk, row.lead_id) == (facet.pk, None)


def test_operators_have_the_process_of_an_incident_ended(root: User, alice: User) -> None:
    use = past.process_use(Gpu.objects.get(uuid=gpu_uuid(0)), NOW, uid=1001)
    row, body = made(use=use), {"pid": 4200001, "start_ticks": 7, "kill": True}
    assert call(alice, f"{row.pk}/end/", body).status_code == 403
    other = call(root, f"{row.pk}/end/", body | {"start_ticks": 8})
    assert (other.status_code, other.json()["detail"]) == (
        409,
        "The incident names another process now. Look at it again. No signal was sent.",
    )
    assert call(root, f"{row.pk}/end/", body).status_code == 200
    assert row.responses.get().step == "kill"


def test_operators_write_to_the_user_of_an_incident(root: User, alice: User) -> None:
    row = made()
    refused = call(root, f"{row.pk}/message/", {"text": "Please stop."})
    assert refused.status_code == 409
    assert "Nothing was sent." in refused.json()["detail"]
    channel(is_mail=True, to_owners=True)
    assert call(root, f"{row.pk}/message/", {"text": "Please stop."}).status_code == 200
    assert Message.objects.get().text.startswith("Please stop.")
