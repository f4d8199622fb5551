"""Rights to call each operation: role × owner × scope of the token × operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site.http.api import api
from monitor.facts.accounts import TokenScope, up_to
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import ApiToken
from monitor.owners import rows
from scheduler.facts.language_models import NewPrompt
from scheduler.language_models.prompts import rows as prompts
from scheduler.models import IdleTemplate, ModelService
from scheduler.submission.batches import rows as batch_rows
from tests.builders import NOW, gpu_uuid, snapshot
from tests.jobs_made import waiting
from tests.pages.test_incidents_page import made

pytestmark = pytest.mark.django_db
READ, SUBMIT = TokenScope.READ, TokenScope.SUBMIT
IDLE_TEMPLATE = {"name": "new", "request": {"command": "true"}}
ALL, OWNER, OPERATORS = "all users", "its owner and operators", "operators"
OWNER_ALONE = "its owner alone"


@dataclass(frozen=True)
class Call:
    """An operation, the scope that it needs, and its callers. {job} and the like are alice's."""

    method: str
    path: str
    scope: TokenScope
    who: str
    body: dict[str, Any] | None = None


WINDOW = {"days": [0], "start": "20:00", "end": "22:00", "reason": "course"}
MODEL = {"name": "qwen2.5:7b", "command": "serve --port {port}", "gpus": 0}
HELLO = NewPrompt(model="small", messages=({"role": "user", "content": "hello"},))
CALLS = (
    Call("GET", "/api/models/", READ, ALL),
    Call("POST", "/api/models/", SUBMIT, OPERATORS, MODEL),
    Call("GET", "/api/models/{model}/", READ, ALL),
    Call("PATCH", "/api/models/{model}/", SUBMIT, OPERATORS, {"pin": True}),
    Call("POST", "/api/models/{model}/boot/", SUBMIT, OPERATORS),
    Call("POST", "/api/models/{model}/unload/", SUBMIT, OPERATORS),
    Call("DELETE", "/api/models/{model}/", SUBMIT, OPERATORS),
    Call("GET", "/api/prompts/", READ, ALL),
    Call("POST", "/api/prompts/", SUBMIT, ALL, {"model": "small", "prompt": "hello"}),
    Call("GET", "/api/prompts/{prompt}/", READ, OWNER),
    Call("POST", "/api/prompts/{prompt}/cancel/", SUBMIT, OWNER),
    Call("GET", "/api/tasks/", READ, ALL),
    Call("POST", "/api/tasks/", SUBMIT, ALL, {"task_class": "llm", "prompt": "hello"}),
    Call("GET", "/api/tasks/{task}/", READ, OWNER),
    Call("GET", "/api/jobs/", READ, ALL),
    Call("POST", "/api/jobs/", SUBMIT, ALL, {"command": "true"}),
    Call("POST", "/api/jobs/batch/", SUBMIT, ALL, {"jobs": [{"command": "true"}]}),
    Call("POST", "/api/jobs/what-if/", READ, ALL, {"command": "true"}),
    Call("GET", "/api/batches/", READ, ALL),
    Call("POST", "/api/batches/", SUBMIT, ALL, {"command": "true", "items": ["a"]}),
    Call("GET", "/api/batches/{batch}/", READ, ALL),
    Call("GET", "/api/batches/{batch}/items/", READ, OWNER),
    Call("POST", "/api/batches/{batch}/cancel/", SUBMIT, OWNER),
    Call("POST", "/api/batches/{batch}/retry-failed/", SUBMIT, OWNER),
    Call("POST", "/api/batches/{batch}/share/", SUBMIT, OWNER),
    Call("POST", "/api/batches/{batch}/approve-exclusive/", SUBMIT, OPERATORS),
    Call("GET", "/api/idle-templates/", READ, ALL),
    Call(
        "POST",
        "/api/idle-templates/",
        SUBMIT,
        OPERATORS,
        {"name": "new", "request": {"command": "true"}},
    ),
    Call("POST", "/api/idle-templates/{template}/signals/", SUBMIT, OWNER, {"quality": 0.5}),
    Call("GET", "/api/scripts/", READ, ALL),
    Call("POST", "/api/scripts/", SUBMIT, OPERATORS, {"name": "new", "argv": ["true"]}),
    Call("GET", "/api/jobs/{job}/", READ, ALL),
    Call("GET", "/api/jobs/{job}/array/", READ, ALL),
    Call("GET", "/api/jobs/{job}/why/", READ, ALL),
    Call("GET", "/api/jobs/{job}/advice/", READ, ALL),
    Call("GET", "/api/jobs/{job}/log/", READ, OWNER),
    Call("POST", "/api/jobs/{job}/cancel/", SUBMIT, OWNER),
    Call("POST", "/api/jobs/{job}/hold/", SUBMIT, OWNER),
    Call("POST", "/api/jobs/{job}/release/", SUBMIT, OWNER),
    Call("PATCH", "/api/jobs/{job}/", SUBMIT, OWNER, {"priority": 1}),
    Call("POST", "/api/jobs/{job}/requeue/", SUBMIT, OWNER),
    Call("POST", "/api/jobs/{job}/resubmit/", SUBMIT, OWNER_ALONE),
    Call("GET", "/api/mode/", READ, ALL),
    Call("POST", "/api/mode/", SUBMIT, OPERATORS, {"mode": "defensive", "hours": 1}),
    Call("GET", "/api/throttle/", READ, ALL),
    Call("GET", "/api/disks/", READ, ALL),
    Call("POST", "/api/disks/clean/", SUBMIT, OPERATORS, {"dry_run": True}),
    Call("GET", "/api/disks/clean/1/", READ, OPERATORS),
    Call("GET", "/api/windows/", READ, ALL),
    Call("POST", "/api/windows/", SUBMIT, ALL, WINDOW),
    # A window that was only asked for is hidden from others: 404.
    Call("POST", "/api/windows/{window}/withdraw/", SUBMIT, ALL),
    Call("GET", "/api/account/notifications/", READ, ALL),
    Call("GET", "/api/account/notifications/recent/", READ, ALL),
    Call("PUT", "/api/account/notifications/", SUBMIT, ALL, {"kinds": ["failed"]}),
    Call("GET", "/api/shares/", READ, ALL),
    Call("GET", "/api/quota/", READ, ALL),
    Call("GET", "/api/quota/?user=alice", READ, OWNER),
    Call("PATCH", "/api/quota/", SUBMIT, OPERATORS, {"user": "alice", "gpus": 1}),
    Call("POST", "/api/users/", SUBMIT, OPERATORS, {"name": "dora"}),
    Call("POST", "/api/users/{person}/invitation/", SUBMIT, OPERATORS),
    Call("GET", "/api/gpus/", READ, ALL),
    Call("POST", "/api/gpus/{gpu}/pause/", SUBMIT, OPERATORS, {"reason": "fan"}),
    Call("POST", "/api/gpus/{gpu}/resume/", SUBMIT, OPERATORS),
    Call("POST", "/api/gpus/{gpu}/release/", SUBMIT, OPERATORS),
    Call("GET", "/api/processes/", READ, ALL),
    Call("GET", "/api/mine/", READ, ALL),
    Call("GET", "/api/events/", READ, ALL),
    Call("GET", "/api/hosts/", READ, ALL),
    Call("GET", "/api/policies/", READ, ALL),
    Call("GET", "/api/reports/usage/", READ, ALL),
    Call("GET", "/api/reports/usage/?scope=user:alice", READ, OWNER),
    Call("GET", "/api/reports/tags/?tag=project", READ, ALL),
    Call("GET", "/api/reports/capacity/", READ, ALL),
    Call("POST", "/api/reports/capacity/", SUBMIT, OPERATORS),
    Call("GET", "/api/reports/stored/", READ, ALL),
    Call("POST", "/api/reports/stored/", SUBMIT, ALL, {"last": "24h"}),
    # Reports that were made for others are hidden: 404.
    Call("GET", "/api/reports/stored/1/", READ, ALL),
    Call("POST", "/api/reports/schedules/1/send/", SUBMIT, OPERATORS),
    Call("GET", "/api/reports/stored/1/{format}/", READ, ALL),
    Call("GET", "/api/incidents/", READ, ALL),
    Call("GET", "/api/incidents/{incident}/", READ, ALL),
    Call("POST", "/api/incidents/{incident}/acknowledge/", SUBMIT, OWNER, {"explanation": "x"}),
    Call("GET", "/api/incidents/{incident}/without/", READ, OWNER),
    Call("POST", "/api/incidents/{incident}/message/", SUBMIT, OPERATORS, {"text": "x"}),
    Call("POST", "/api/incidents/{incident}/end/", SUBMIT, OPERATORS, {"pid": 1, "start_ticks": 1}),
    Call("POST", "/api/incidents/{incident}/snooze/", SUBMIT, OPERATORS, {"hours": 1}),
    Call("POST", "/api/incidents/{incident}/close/", SUBMIT, OPERATORS, {"reason": "x"}),
    Call("POST", "/api/incidents/{incident}/exempt/", SUBMIT, OPERATORS, {"reason": "x"}),
)


def names() -> dict[str, str]:
    snapshots.record(snapshot(2))
    alice = User.objects.get(username="alice")
    ModelService.objects.create(name="small", argv=["serve", "{port}"], gpus=0)
    return {
        "model": "small",
        "prompt": str(prompts.create(HELLO, alice, NOW).pk),
        "task": f"prompt-{prompts.create(HELLO, alice, NOW).pk}",
        "job": str(waiting(alice).pk),
        "template": IdleTemplate.objects.create(
            name="alice-idle", account=alice, request={"command": "true"}
        ).name,
        "batch": str(batch_rows.create(alice, "x", {"command": "true"}, ["a"], NOW).pk),
        "gpu": gpu_uuid(),
        "incident": str(made().pk),
        "window": "1",
        "person": alice.username,
        "format": "json",
    }


@pytest.fixture
def people(alice: User, bob: User, root: User) -> dict[str, User]:
    return {"alice": alice, "bob": bob, "root": root}


def status(call: Call, path: str, token: str | None) -> int:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    send = getattr(Client(raise_request_exception=False), call.method.lower())
    more = {} if call.method == "GET" else {"content_type": "application/json"}
    return int(send(path, call.body or {}, headers=headers, **more).status_code)


def is_allowed(call: Call, person: str, scope: TokenScope) -> bool:
    if call.scope not in up_to(scope):
        return False
    if call.who in (OWNER, OWNER_ALONE) and person == "alice":
        return True
    is_operator = person == "root" and scope is TokenScope.OPERATE
    return call.who == ALL or (is_operator and call.who != OWNER_ALONE)


@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c.method} {c.path}")
def test_each_operation_is_open_to_its_callers_alone(call: Call, people: dict[str, User]) -> None:
    path = call.path.format(**names())
    wrong = []
    for name, user in people.items():
        for scope in TokenScope:
            _, text = rows.create_token(user, NOW, scopes=up_to(scope))
            found = status(call, path, text)
            if is_allowed(call, name, scope) == (found == 403) or found in (401, 500):
                wrong.append((name, scope.value, found))

    assert wrong == []
    assert status(call, path, None) == 401


def test_every_operation_is_in_the_table() -> None:
    """A new operation needs a line in CALLS."""
    listed = {(call.method, call.path.partition("?")[0]) for call in CALLS}
    assert {(method, _pattern(path)) for method, path in listed} == {
        (method, _pattern(f"/api{prefix}{path}"))
        for prefix, router in api._routers
        for path, view in router.path_operations.items()
        for operation in view.operations
        for method in operation.methods
    }


def _pattern(path: str) -> str:
    is_value = {part for part in path.split("/") if part.startswith("{") or part.isdecimal()}
    parts = ["*" if part in is_value | {"alice"} else part for part in path.split("/")]
    return "/".join(parts).replace("//", "/")


def test_a_token_with_less_scope_does_not_take_rights_of_staff_from_its_user(root: User) -> None:
    _, text = rows.create_token(root, NOW, scopes=up_to(TokenScope.SUBMIT))
    Client().post(
        "/api/jobs/",
        {"command": "true"},
        content_type="application/json",
        headers={"authorization": f"Bearer {text}"},
    )

    root.refresh_from_db()
    assert root.is_staff
    assert root.is_superuser


def test_the_answer_names_the_missing_scope(root: User) -> None:
    def detail(path: str, scope: TokenScope) -> str:
        _, text = rows.create_token(root, NOW, scopes=up_to(scope))
        headers = {"authorization": f"Bearer {text}"}
        answer = Client().post(path, {}, content_type="application/json", headers=headers)
        return str(answer.json()["detail"])

    assert "lacks the scope `submit`" in detail("/api/jobs/", TokenScope.READ)
    paused = detail(f"/api/gpus/{gpu_uuid()}/pause/", TokenScope.SUBMIT)
    assert paused == "Only operators may do this. This token lacks the scope `operate`."


def test_tokens_from_before_scopes_have_all_rights(alice: User) -> None:
    row = ApiToken.objects.create(user=alice, digest="x", prefix="x", created_at=NOW)

    assert row.scopes == "read submit operate"
