"""A service that no host can ever run is refused when it is declared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.gpus.rows import snapshot as snapshots
from monitor.models import LatestSnapshot
from scheduler.models import ModelService
from tests.builders import GIB, gpu, gpu_uuid, host, snapshot

pytestmark = pytest.mark.django_db
NEW = {"name": "large", "command": "serve --port {port}"}


@pytest.fixture
def operator(root: User) -> Client:
    client = Client()
    client.force_login(root)
    return client


@pytest.fixture
def two_gpus() -> None:
    """GPU 0 has 24 GiB, GPU 1 has 80 GiB."""
    snapshots.record(snapshot([gpu(0, memory_total_bytes=24 * GIB), gpu(1)]))


def declare(client: Client, **values: Any) -> Any:
    return client.post("/api/models/", json.dumps(NEW | values), content_type="application/json")


def change(client: Client, **values: Any) -> Any:
    return client.patch("/api/models/large/", json.dumps(values), content_type="application/json")


def errors(answer: Any) -> list[tuple[str, str]]:
    assert answer.status_code == 422, answer.content
    return [(error["field"], error["message"]) for error in answer.json()["errors"]]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("values", "field", "text"),
    [
        ({"gpus": 3}, "gpus", "You ask for 3 GPUs; this machine has 2 GPUs."),
        (
            {"gpu_memory": "100GiB"},
            "gpu_memory",
            "You ask for 100 GiB of GPU memory; the largest GPU here has 80 GiB.",
        ),
        (
            {"gpus": 2, "gpu_memory": "40GiB"},
            "gpu_memory",
            "You ask for 40 GiB of GPU memory on each GPU; only 1 of the GPUs here have that much.",
        ),
        (
            {"on_gpus": [gpu_uuid(0)], "gpu_memory": "40GiB"},
            "gpu_memory",
            "You ask for 40 GiB of GPU memory; the largest GPU here has 24 GiB.",
        ),
    ],
    ids=["count", "memory", "memory of each", "memory of the named"],
)
def test_a_request_above_every_host_is_refused_with_the_largest_figure(
    operator: Client, values: dict[str, Any], field: str, text: str
) -> None:
    assert errors(declare(operator, **values)) == [(field, text)]
    assert not ModelService.objects.exists()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    "values",
    [
        {"gpus": 0},
        {"gpus": 2, "gpu_memory": "24GiB"},
        {"on_gpus": [gpu_uuid(1)], "gpu_memory": "80GiB"},
    ],
    ids=["without a GPU", "two GPUs", "the larger GPU"],
)
def test_what_an_idle_host_could_run_is_accepted(operator: Client, values: dict[str, Any]) -> None:
    assert declare(operator, **values).status_code == 201


def test_without_a_reading_of_any_host_it_is_accepted(operator: Client) -> None:
    assert declare(operator, gpus=64, gpu_memory="1TiB").status_code == 201


@pytest.mark.usefixtures("two_gpus")
def test_named_gpus_without_a_reading_may_be_large_enough(operator: Client) -> None:
    snapshots.record(snapshot([gpu(uuid="GPU-far")], host=host(name="far")))
    LatestSnapshot.objects.filter(host="far").delete()

    answer = declare(operator, gpu_memory="100GiB", on_gpus=[gpu_uuid(1), "GPU-far"])

    assert answer.status_code == 201, answer.content


@pytest.mark.usefixtures("two_gpus")
def test_a_change_is_checked_only_where_it_changes_the_request(operator: Client) -> None:
    """A GPU may be removed later; its service can still be disabled."""
    ModelService.objects.create(name="large", argv=["serve", "{port}"], memory_mib=100 * 1024)

    assert change(operator, enabled=False).status_code == 200
    assert [field for field, _ in errors(change(operator, gpu_memory="200GiB"))] == ["gpu_memory"]
    assert change(operator, gpu_memory="80GiB").status_code == 200


@pytest.mark.usefixtures("two_gpus")
def test_the_admin_refuses_it_at_the_same_field(operator: Client) -> None:
    answer = filled_in(operator, memory_mib=100 * 1024)

    assert "the largest GPU here has 80 GiB" in answer.context["errors"].as_text()
    assert list(answer.context["adminform"].form.errors) == ["memory_mib"]
    assert not ModelService.objects.exists()


@pytest.mark.parametrize(
    ("column", "value"), [("gpus", 65), ("max_instances", 65), ("concurrency", 4097)]
)
def test_the_admin_has_the_limits_of_rest(operator: Client, column: str, value: int) -> None:
    answer = filled_in(operator, **{column: value})

    assert list(answer.context["adminform"].form.errors) == [column]
    assert declare(operator, **{column: value}).status_code == 422
    assert not ModelService.objects.exists()


def filled_in(client: Client, **values: Any) -> Any:
    """The answer to the form of the admin."""
    filled = NEW | {
        "health_path": "/health", "gpus": 1, "min_instances": 0,
        "max_instances": 1, "concurrency": 4, "min_residency_s": 60, "boot_timeout_s": 600,
        "role": "worker_or_script", "enabled": "on", "prediction": "off",
    }  # fmt: skip
    return client.post("/admin/scheduler/modelservice/add/", filled | values)
