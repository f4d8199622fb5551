from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from monitor.facts.readings import CallCost, Health, Limits
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Lease
from monitor.runtime import pages
from monitor.runtime.probes import service_state
from monitor.runtime.probes.service_state import ChildState, ServiceState
from monitor.runtime.rows import leases
from scheduler.models import HostCapability
from tests.builders import GIB, NOW, gpu, host, snapshot
from tests.monitor import alerts_made

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]


def test_the_page_warns_when_jobs_share_accounts(alice: User, as_user: AsUser) -> None:
    page = as_user(alice).get("/status/").content.decode()

    assert "Accounts of jobs" in page
    assert "can read and change each other" in page


@pytest.fixture
def ticking(settings: Any, data: Path) -> None:
    """Three loops of this host that ticked half a second ago."""
    now = timezone.now()
    for loop, every_s in (("sampler", 1), ("controller", 5), ("scheduler", 1)):
        Lease.objects.create(
            name=f"{loop}:{settings.CONFIG.node}",
            loop=loop,
            host=settings.CONFIG.node,
            every_s=every_s,
            pid=4242,
            expires_at=now + timedelta(seconds=6),
            acquired_at=now - timedelta(seconds=30),
            last_tick_at=now - timedelta(seconds=0.5),
            lateness_p50_ms=1.25,
            lateness_p99_ms=7.5,
        )


def fail(loop: str, **fields: object) -> None:
    Lease.objects.filter(loop=loop).update(**fields)


def test_healthz_needs_no_login(client: Client, ticking: None) -> None:
    response = client.get("/healthz")

    assert response.status_code == 200
    body = response.json()
    assert body["status"] == "ok"
    assert list(body["loops"]) == ["sampler", "controller", "scheduler"]
    assert 0.5 <= body["loops"]["sampler"].pop("age_s") < 60
    assert body["loops"]["sampler"] == {"lag_ms": 7.5, "error": None}


def test_healthz_is_503_when_a_loop_is_stale(client: Client, ticking: None) -> None:
    fail("scheduler", last_tick_at=timezone.now() - timedelta(minutes=1))

    response = client.get("/healthz")

    assert response.status_code == 503
    assert response.json()["status"] == "stale"


def test_healthz_is_503_before_anything_ran(client: Client, data: Path) -> None:
    response = client.get("/healthz")

    assert response.status_code == 503
    assert response.json()["loops"]["sampler"] == {"age_s": None, "lag_ms": None, "error": None}


def test_healthz_reports_a_fault_in_one_short_line(client: Client, ticking: None) -> None:
    fail("sampler", failing_since_at=timezone.now(), last_error="ValueError: " + "x" * 500)

    response = client.get("/healthz")

    assert response.status_code == 200
    assert response.json()["status"] == "failing"
    assert response.json()["loops"]["sampler"]["error"] == "ValueError: " + "x" * 108


def test_healthz_reports_nothing_of_other_hosts(client: Client, ticking: None) -> None:
    Lease.objects.create(name="sampler:x", loop="sampler", host="x", expires_at=timezone.now())

    assert client.get("/healthz").status_code == 200


def test_healthz_answers_without_a_database(
    client: Client, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_host: str) -> None:
        raise OperationalError("it is away")

    monkeypatch.setattr(leases, "facts", away)

    response = client.get("/healthz")

    assert response.status_code == 503
    assert response.json() == {"status": "no database", "loops": {}}


def test_healthz_is_only_read(client: Client) -> None:
    assert client.post("/healthz").status_code == 405


def test_strangers_do_not_see_the_status_page(client: Client) -> None:
    assert client.get("/status/").status_code == 302


def test_the_page_answers_whether_it_works(alice: User, as_user: AsUser, ticking: None) -> None:
    page = as_user(alice).get("/status/").content.decode()

    assert "All services running" in page
    assert page.count('data-shape="ok">running<') == 3
    assert "1.25 / 7.50" in page
    assert ">4242<" in page


def test_the_page_names_stale_loops(alice: User, as_user: AsUser, ticking: None) -> None:
    fail("sampler", last_tick_at=timezone.now() - timedelta(minutes=3), pid=None)

    page = as_user(alice).get("/status/").content.decode()

    assert 'data-shape="failing">The sampler on ' in page
    assert "is not running" in page


def test_a_full_disk_is_named_before_the_loops_that_it_stops(
    alice: User, as_user: AsUser, ticking: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail("sampler", last_tick_at=timezone.now() - timedelta(minutes=3), pid=None)
    monkeypatch.setattr(pages, "_storage", lambda: pages.Storage("SQLite", 10**6, 0))

    page = as_user(alice).get("/status/").content.decode()

    assert 'data-shape="failing">The disk with the data of gpucoord is full' in page
    assert "nothing can be stored until space is freed" in page


def test_only_operators_read_the_text_of_a_fault(
    alice: User, root: User, as_user: AsUser, ticking: None
) -> None:
    now = timezone.now()
    fail("sampler", failing_since_at=now, last_error="OSError: /etc/x", last_error_at=now)

    seen_by_alice = as_user(alice).get("/status/").content.decode()
    seen_by_root = as_user(root).get("/status/").content.decode()

    assert "Last error of the sampler" in seen_by_alice
    assert "OSError: /etc/x" not in seen_by_alice
    assert "OSError: /etc/x" in seen_by_root


def test_the_page_says_what_to_do_before_anything_ran(
    alice: User, as_user: AsUser, data: Path
) -> None:
    page = as_user(alice).get("/status/").content.decode()

    assert "Start gpucoord with: <code>gpucoord up</code>" in page
    assert "has never run" in page


def test_the_page_lists_the_processes(
    alice: User, as_user: AsUser, ticking: None, data: Path
) -> None:
    now = timezone.now().timestamp()
    web = ChildState(
        name="web", pid=7, start_ticks=1, since_t=now - 60, restarts=2, last_end="SIGKILL"
    )
    tasks = ChildState(name="tasks", pid=None, start_ticks=None, since_t=now)
    (data / "run").mkdir()
    state = ServiceState(
        pid=5,
        boot_id="b",
        command="gpucoord",
        version="9.8.7",
        address="http://x/",
        started_t=now - 3600,
        children=(web, tasks),
        canary_t=now - 4,
        canary_s=0.5,
    )
    service_state.write(data / "run", state)

    page = as_user(alice).get("/status/").content.decode()

    assert service_state.read(data / "run") == state
    assert "SIGKILL" in page
    assert "waiting for restart" in page
    assert "round trip 0.500 s" in page
    assert "9.8.7" in page


def test_a_state_file_of_another_version_is_no_fault(data: Path) -> None:
    (data / "run").mkdir()
    (data / "run" / "service.json").write_text('{"children": [], "pid": 1}')

    assert service_state.read(data / "run") is None


def test_it_shows_resource_limits_and_their_origin(alice: User, as_user: AsUser) -> None:
    limits = Limits(
        cpus=2.5,
        cpus_origin="cgroup v2 cpu.max",
        machine_cpus=64,
        memory_bytes=8 * GIB,
        memory_origin="pod limit",
        machine_memory_bytes=512 * GIB,
        visible_gpus=("0", "1"),
    )
    snapshots.record(snapshot(host=host(limits=limits), at=timezone.now()))

    page = as_user(alice).get("/status/").content.decode()
    assert "2.5 of 64 CPUs" in page
    assert "cgroup v2 cpu.max" in page
    assert "8.00 GiB of 512 GiB memory" in page
    assert "pod limit" in page
    assert "NVIDIA_VISIBLE_DEVICES" in page
    of_host = as_user(alice).get("/hosts/gpubox/").content.decode()
    assert "2.5 of 64 CPUs" in of_host
    assert "Limited by pod limit" in of_host


def test_it_shows_the_duration_of_nvml_calls(alice: User, as_user: AsUser, ticking: None) -> None:
    cost = CallCost(call="nvmlDeviceGetPowerUsage", count=7, p50_ms=1.25, p99_ms=31.5, every=5)
    snapshots.record(snapshot(1, costs=(cost,), dropped=3))
    html = as_user(alice).get("/status/").content.decode()

    assert "nvmlDeviceGetPowerUsage" in html
    assert "1.25 / 31.5" in html
    assert "3 per-process utilisation samples" in html or "3 of the driver's statements" in html


def test_operators_see_whether_alerts_arrive(
    root: User, alice: User, as_user: Callable[[User], Client]
) -> None:
    assert "Add a channel" in as_user(root).get("/status/").content.decode()
    alerts_made.channel(failing_since=NOW, problem="error=500.")

    assert "error=500." in as_user(root).get("/status/").content.decode()
    assert "error=500." not in as_user(alice).get("/status/").content.decode()


def test_it_lists_isolation_features(
    alice: User, as_user: AsUser, ticking: None, settings: Any
) -> None:
    node = settings.CONFIG.node
    HostCapability.objects.create(
        host=node, name="cgroup", active=True, text="cgroup version 2", since_at=timezone.now()
    )
    HostCapability.objects.create(
        host="other", name="nice", text="+10 as soon as …", since_at=timezone.now()
    )

    html = as_user(alice).get("/status/").content.decode()

    assert "Isolation</h2>" in html
    assert "Isolation on other</h2>" in html
    assert ">active</span> cgroup version 2" in html
    assert ">ready</span> +10" in html


def test_a_problem_of_the_readings_may_wrap_and_its_commands_are_set_as_code(
    alice: User, as_user: AsUser
) -> None:
    problem, remedy = "No driver was found <here>.", "Install it: `apt install nvidia-driver`"
    snapshots.record(snapshot(at=timezone.now(), problem=problem, remedy=remedy))

    page = as_user(alice).get("/status/").content.decode()

    # A badge is one line, so a long sentence in it would make a phone scroll.
    assert '<span class="badge" data-shape="warning">problem</span>' in page
    assert "No driver was found &lt;here&gt;." in page
    assert "<code>apt install nvidia-driver</code>" in page
    assert "`" not in page


def test_the_page_names_each_gpu_that_cannot_be_read_and_the_call(
    alice: User, as_user: AsUser
) -> None:
    hung, refused = "nvmlDeviceGetName did not come back", "nvmlDeviceGetPowerUsage: Unknown Error"
    gpus = [gpu(0), gpu(1, health=Health.FAILING, problem=hung), gpu(2, failed_calls=(refused,))]
    snapshots.record(snapshot(gpus, at=timezone.now()))

    page = as_user(alice).get("/status/").content.decode()

    assert f"failing</span> GPU 1: {hung}" in page
    assert f"failed calls</span> GPU 2: {refused}" in page
    assert "GPU 0:" not in page
