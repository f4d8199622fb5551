"""Model services: what REST and the admin accept, and what the proxy may ask the rows."""

from __future__ import annotations

import json
import os
import pwd
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from msgspec.structs import replace

from monitor.models import AuditEntry, Host
from scheduler.facts import model_fields as policy
from scheduler.language_models.model_services import rows, steps
from scheduler.models import ModelInstance, ModelService
from scheduler.runner import accounts
from tests.builders import NOW
from tests.processes.service import ROOT

pytestmark = pytest.mark.django_db
COMMAND = "serve --model {model} --port {port}"


def service(name: str = "small", **values: Any) -> ModelService:
    return ModelService.objects.create(**({"name": name, "argv": ["serve", "{port}"]} | values))


def instance(of: ModelService, state: str = "ready", **values: Any) -> ModelInstance:
    return ModelInstance.objects.create(service=of, state=state, since=NOW, **values)


@pytest.fixture
def operator(root: User) -> Client:
    client = Client()
    client.force_login(root)
    return client


def send(client: Client, method: str, path: str, body: dict[str, Any]) -> Any:
    call = getattr(client, method)
    return call(path, json.dumps(body), content_type="application/json")


def test_an_operator_adds_a_service_and_all_users_see_it(operator: Client, alice: User) -> None:
    body = {
        "name": "qwen2.5:14b", "command": COMMAND, "gpu_memory": "20GiB", "keep_alive": "5min",
        "role": "brain_primary", "max_instances": 2,
    }  # fmt: skip
    answer = send(operator, "post", "/api/models/", body)
    assert answer.status_code == 201, answer.content
    reader = Client()
    reader.force_login(alice)
    (line,) = reader.get("/api/models/").json()["models"]

    assert answer.status_code == 201, answer.content
    assert answer.json()["command"] == ["serve", "--model", "{model}", "--port", "{port}"]
    assert line["command"] is None
    assert (line["gpu_memory_bytes"], line["keep_alive_s"]) == (20 * 1024**3, 300)
    assert (line["state"], line["role"], line["expected_boot_s"]) == (
        "stopped", "brain_primary", 160.0,
    )  # fmt: skip
    assert AuditEntry.objects.get().action == "MODEL_ADDED"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("name", {"name": "two words"}),
        ("command", {"command": "serve --port 8000"}),
        ("command", {"command": "serve '{port}"}),
        ("health_path", {"health_path": "health"}),
        ("wake_path", {"sleep_path": "/sleep"}),
        ("min_instances", {"min_instances": 2}),
        ("gpu_memory", {"gpu_memory": "much"}),
        ("keep_alive", {"keep_alive": "long"}),
        ("on_gpus", {"on_gpus": ["GPU-none"]}),
        ("concurrency", {"concurrency": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_field_is_refused_and_named(
    operator: Client, field: str, changes: dict[str, Any]
) -> None:
    body = {"name": "small", "command": COMMAND} | changes
    answer = send(operator, "post", "/api/models/", body)

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert not ModelService.objects.exists()


def test_a_name_is_used_once(operator: Client) -> None:
    service("small")

    answer = send(operator, "post", "/api/models/", {"name": "small", "command": COMMAND})

    assert answer.status_code == 422
    assert "already" in answer.json()["errors"][0]["message"]


def test_only_an_administrator_chooses_the_account(alice: User) -> None:
    alice.is_staff = True
    alice.save()
    client = Client()
    client.force_login(alice)
    service("as-root", account="root")

    added = send(
        client, "post", "/api/models/", {"name": "mine", "command": COMMAND, "account": "root"}
    )
    changed = send(client, "patch", "/api/models/as-root/", {"command": COMMAND})

    assert [error["field"] for error in added.json()["errors"]] == ["account"]
    assert [error["field"] for error in changed.json()["errors"]] == ["command"]


def test_a_change_keeps_what_it_does_not_name(operator: Client) -> None:
    service("small", concurrency=7)

    answer = send(operator, "patch", "/api/models/small/", {"pin": True, "keep_alive": "never"})

    assert answer.status_code == 200
    assert (answer.json()["pin"], answer.json()["concurrency"]) == (True, 7)
    assert answer.json()["keep_alive_s"] is None


def test_a_removed_service_is_gone(operator: Client) -> None:
    service("small")

    assert operator.delete("/api/models/small/").status_code == 204
    assert operator.get("/api/models/small/").status_code == 404


def test_a_boot_is_asked_for_and_ends_the_pause_after_failures(operator: Client) -> None:
    small = service(retry_at=NOW + timedelta(days=1), problem="It crashed.")

    answer = operator.post("/api/models/small/boot/")
    small.refresh_from_db()

    assert answer.status_code == 200
    assert small.wanted_at is not None
    assert (small.retry_at, small.problem) == (None, "")


def test_an_unload_drains_ready_instances_and_forgets_the_demand(operator: Client) -> None:
    small = service(wanted_at=NOW)
    ready = instance(small)

    answer = operator.post("/api/models/small/unload/")
    ready.refresh_from_db()
    small.refresh_from_db()

    assert [one["state"] for one in answer.json()["instances"]] == ["draining"]
    assert "root unloaded it" in ready.reason
    assert small.wanted_at is None


def test_a_service_that_stays_loaded_is_not_unloaded(operator: Client) -> None:
    service(min_instances=1)

    answer = operator.post("/api/models/small/unload/")

    assert answer.status_code == 409
    assert "min_instances" in answer.json()["detail"]


def test_the_admin_refuses_what_rest_refuses(operator: Client) -> None:
    values = {"name": "small", "command": "serve --port 8000", "health_path": "/health", "gpus": 1,
              "min_instances": 0, "max_instances": 1, "concurrency": 4, "min_residency_s": 60,
              "boot_timeout_s": 600, "role": "worker_or_script", "enabled": "on",
              "prediction": "off"}  # fmt: skip

    refused = operator.post("/admin/scheduler/modelservice/add/", values)
    stored = operator.post("/admin/scheduler/modelservice/add/", values | {"command": COMMAND})

    assert policy.NO_PORT in refused.content.decode()
    assert stored.status_code == 302, stored.content.decode()
    assert ModelService.objects.get().argv[-1] == "{port}"
    assert AuditEntry.objects.get().action == "MODEL_ADDED"


def test_a_demand_is_recorded_for_enabled_services() -> None:
    small, off = service(), service("off", enabled=False)

    asked = [rows.request_instance(one.pk, NOW) for one in (small, off)]
    small.refresh_from_db()

    assert asked == [True, False]
    assert small.wanted_at == NOW


def test_the_address_follows_from_the_port() -> None:
    row = instance(service(api_base_path="/v1"), port=9000)

    assert row.api_url == "http://127.0.0.1:9000/v1"
    assert instance(service("other")).api_url == ""


def test_placeholders_are_filled_in_and_other_braces_stay() -> None:
    argv = ["serve", "--port={port}", '{"a": {gpu}}', "{model}", "{other}"]
    values = {"port": "9000", "gpu": "3", "model": "m", "gpu_memory_fraction": "0.4"}

    assert policy.filled_argv(argv, values) == [
        "serve", "--port=9000", '{"a": 3}', "m", "{other}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("placed", "total", "fraction"),
    [(20, 80, "0.25"), (1, 3, "0.33"), (80, 80, "1.00"), (None, 80, "0"), (20, None, "0")],
)
def test_the_memory_fraction_never_exceeds_what_was_placed(
    placed: int | None, total: int | None, fraction: str
) -> None:
    assert policy.memory_fraction(placed, total) == fraction


@pytest.mark.parametrize("name", sorted(policy.COMMANDS))
def test_a_shipped_template_is_a_valid_command_and_stands_in_the_docs(name: str) -> None:
    command = policy.COMMANDS[name]
    values = {"model": "q", "port": "9000", "gpu": "0", "gpu_memory_fraction": "0.25"}
    filled = policy.filled_argv(policy.parse_argv(command), values)

    assert any("9000" in word for word in filled)
    assert not any("{" in word for word in filled)
    docs = (ROOT / "docs" / "operators" / "models.md").read_text()
    assert f"| {name} | `{command}`" in docs


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("qwen2.5:14b", 160.0),
        ("qwen2.5:7b", 120.0),
        ("whisper:small.en", 5.0),
        ("sentence-transformers", 3.0),
        ("another", 120.0),
        ("llama-3.2-3B-instruct", 60.0),
        ("mixtral-70b", 360.0),
        ("gpt-4b2", 120.0),
    ],
)
def test_the_shipped_boot_time_holds_before_the_first_boot(name: str, seconds: float) -> None:
    assert rows.expected_boot_s(service(name)) == seconds


def test_a_learned_boot_time_replaces_the_shipped_one() -> None:
    small = service("qwen2.5:7b")
    before = rows.expected_boot_s(small)
    small.boots.create(gpu_model="H100", boot_s=85.0, boots=1, measured_at=NOW)
    small.boots.create(gpu_model="A100", boot_s=140.0, boots=1, measured_at=NOW)

    assert before == 120.0
    assert rows.expected_boot_s(small, "H100") == 85.0
    assert rows.expected_boot_s(small) == 140.0


def test_a_stated_boot_time_holds_until_one_is_learned(operator: Client) -> None:
    body = {"name": "small", "command": COMMAND, "usual_boot": "45s"}
    answer = send(operator, "post", "/api/models/", body).json()
    row = ModelService.objects.get()

    assert (answer["boot_s"], answer["expected_boot_s"]) == (45, 45.0)
    row.boots.create(gpu_model="H100", boot_s=85.0, boots=1, measured_at=NOW)
    assert rows.expected_boot_s(row) == 85.0
    changed = send(operator, "patch", "/api/models/small/", {"usual_boot": ""})
    assert changed.json()["boot_s"] is None
    refused = send(operator, "patch", "/api/models/small/", {"usual_boot": "3d"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "usual_boot")


def test_an_instance_is_idle_since_its_last_request() -> None:
    later = NOW + timedelta(seconds=30)
    row = instance(service(), ready_at=NOW, last_request_at=later)

    assert rows.instance_fact(row).idle_since == later


def test_boot_times_are_weighted_means_of_each_gpu_model() -> None:
    small = service()
    for took_s in (100, 200):
        row = instance(small, started_boot_at=NOW - timedelta(seconds=took_s))
        rows.learn_boot(small, row, NOW)

    boot = small.boots.get()
    assert (boot.gpu_model, boot.boots) == ("", 2)
    assert boot.boot_s == pytest.approx(130)


def test_as_root_an_instance_runs_as_an_account_that_no_user_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    known = {"nobody": (65534, "/nonexistent"), "root": (0, "/root")}

    def entry(name: str) -> Any:
        if name not in known:
            return None
        uid, home = known[name]
        return pwd.struct_passwd((name, "x", uid, uid, "", home, "/bin/sh"))

    monkeypatch.setattr(accounts, "_entry", entry)
    default = accounts.account_of_service("", run_as="auto")

    assert default.uid in range(accounts.FIRST_UNUSED, accounts.LAST_UNUSED)
    assert accounts.account_of_service("root", run_as="auto").uid == 0
    with pytest.raises(accounts.MissingAccount, match="no OS account vanished"):
        accounts.account_of_service("vanished", run_as="auto")


def test_an_account_that_the_only_host_does_not_have_is_refused(
    root: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(accounts, "_entry", lambda _name: None)
    settings.CONFIG = replace(settings.CONFIG, run_as="auto")
    new = {"name": "small", "argv": ["serve", "{port}"], "account": "vanished"}

    with pytest.raises(steps.InvalidService, match="no OS account vanished"):
        steps.create(new, root, NOW)
    # Another host may have it.
    for name in ("here", "there"):
        Host.objects.create(name=name, joined_at=NOW)
    assert steps.create(new, root, NOW).account == "vanished"
