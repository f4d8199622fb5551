"""REST: hosts with their CPU, memory and disks, and the policies in force."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.facts.readings import DiskReading, HostReading, Pressure
from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents.policy.findings import GpuTimePolicy
from monitor.thresholds import rows as thresholds
from tests.builders import GIB, gpu, process, snapshot

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]


def get(browser: Client, path: str) -> Any:
    answer = browser.get(path)
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_hosts_are_listed_with_cpu_memory_and_disks(alice: User, as_user: AsUser) -> None:
    host = HostReading(
        name="gpubox",
        cpu_count=64,
        cpu_pct=12.5,
        load_1=3.0,
        memory_total_bytes=256 * GIB,
        memory_available_bytes=64 * GIB,
        disks=(DiskReading(mount="/", total_bytes=1000, free_bytes=250),),
        pressure=Pressure(cpu_some_pct=1.5),
    )
    snapshots.record(snapshot(2, host=host))

    (found,) = get(as_user(alice), "/api/hosts/")["hosts"]

    assert (found["name"], found["cpu_count"], found["cpu_pct"]) == ("gpubox", 64, 12.5)
    assert (found["memory_total_bytes"], found["memory_used_pct"]) == (256 * GIB, 75.0)
    assert found["disks"] == [
        {"mount": "/", "total_bytes": 1000, "free_bytes": 250, "used_pct": 75.0}
    ]
    assert found["pressure"]["cpu_some_pct"] == 1.5
    assert found["gpus"] == 2


def test_gpus_and_hosts_show_the_shares_of_jobs_and_of_others(alice: User, as_user: AsUser) -> None:
    on_it = [process(1, sm_pct=30.0, job_ref="7"), process(2, sm_pct=20.0)]
    snapshots.record(snapshot([gpu(utilization_pct=50.0)], on_it))
    browser = as_user(alice)

    for kind in ("gpus", "hosts"):
        (found,) = get(browser, f"/api/{kind}/")[kind]
        assert (found["jobs_share_pct"], found["others_share_pct"]) == (30, 20)


def test_what_is_unknown_of_a_host_is_null(alice: User, as_user: AsUser) -> None:
    snapshots.record(snapshot(0, host=HostReading(name="gpubox")))

    (found,) = get(as_user(alice), "/api/hosts/")["hosts"]

    unknown = ("cpu_pct", "memory_total_bytes", "memory_used_pct", "load_1", "swap_used_bytes")
    assert [found[name] for name in unknown] == [None] * len(unknown)
    assert found["disks"] == []


def test_policies_are_listed_with_all_values_in_force(alice: User, as_user: AsUser) -> None:
    thresholds.change("hogs", {"sustained_pct": 70.0}, by="root", now=timezone.now())

    found = get(as_user(alice), "/api/policies/")

    by_name = {each["name"]: each for each in found["policies"]}
    assert set(by_name) == set(thresholds.registered())
    settings = {each["name"]: each for each in by_name["hogs"]["settings"]}
    assert settings["sustained_pct"]["value"] == 70.0
    assert settings["sustained_pct"]["shipped"] == GpuTimePolicy().sustained_pct
    assert settings["sustained_pct"]["text"].startswith("70")
    assert found["profile"] == thresholds.profile()


@pytest.mark.parametrize("path", ["/api/hosts/", "/api/policies/"])
def test_both_need_a_login(client: Client, path: str) -> None:
    assert client.get(path).status_code == 401


def test_the_page_of_rules_names_the_rest_address(alice: User, as_user: AsUser) -> None:
    assert "/api/policies/" in as_user(alice).get("/rules/").content.decode()
