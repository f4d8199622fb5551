from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from monitor.facts.gpus import GpuState
from monitor.facts.readings import DiskReading, Health, HostCounters, Pressure, Snapshot
from monitor.gpus.rows import snapshot as snapshot_rows
from monitor.incidents.alerts import steps
from monitor.journal.facts import EvictionReason
from monitor.journal.rows import counters, events
from monitor.models import Lease, Message
from monitor.pages import metrics as monitor_metrics
from monitor.pages.metrics import Families
from tests.builders import GIB, NOW, claim, gpu, gpu_uuid, host, process, snapshot
from tests.monitor.alerts_made import channel, incident, later
from tests.monitor.scrape import Scrape, scrape_of

pytestmark = pytest.mark.django_db


def scrape(*snapshots: Snapshot, later: timedelta = timedelta(seconds=1)) -> Scrape:
    for one in snapshots:
        snapshot_rows.record(one)
    into = Families()
    monitor_metrics.add_metrics(into, NOW + later)
    return scrape_of(into)


def on_gpu(**changes: Any) -> Scrape:
    return scrape(snapshot([gpu(**changes)]))


def test_it_exports_the_readings_of_a_gpu() -> None:
    busy = gpu(
        temperature_c=64.0,
        utilization_pct=97.0,
        power_w=412.5,
        memory_used_bytes=30 * GIB,
        memory_reserved_bytes=GIB,
        sm_clock_mhz=1980,
    )

    found = scrape(snapshot([busy]))

    assert found.value("gpu_temperature_celsius") == 64
    assert found.value("gpu_utilization_percent") == 97
    assert found.value("gpu_power_watts") == 412.5
    assert found.value("gpu_memory_total_bytes") == 80 * GIB
    assert found.value("gpu_memory_used_bytes") == 30 * GIB
    assert found.value("gpu_memory_free_bytes") == 49 * GIB
    assert found.value("gpu_sm_clock_hertz") == 1.98e9


def test_each_metric_of_a_gpu_says_which_gpu_on_which_host_it_is() -> None:
    found = scrape(snapshot([gpu(3)], probe="nvml"))

    [sample] = found.families["gpu_temperature_celsius"].samples
    assert sample.labels == {
        "gpu": gpu_uuid(3),
        "index": "3",
        "host": "gpubox",
        "name": "NVIDIA H100 80GB HBM3",
        "simulated": "false",
    }


def test_simulated_figures_are_marked_as_such() -> None:
    found = scrape(snapshot(2, probe="simulated"))

    of_gpus = [sample for sample in found.samples if "gpu" in sample.labels]
    assert of_gpus
    assert {sample.labels["simulated"] for sample in of_gpus} == {"true"}
    assert found.value("gpucoord_simulated", host="gpubox") == 1


@pytest.mark.parametrize(
    ("field", "missing"),
    [
        ("temperature_c", ["gpu_temperature_celsius"]),
        ("utilization_pct", ["gpu_utilization_percent"]),
        ("power_w", ["gpu_power_watts"]),
        ("memory_used_bytes", ["gpu_memory_used_bytes", "gpu_memory_free_bytes"]),
        ("memory_total_bytes", ["gpu_memory_total_bytes", "gpu_memory_free_bytes"]),
        ("sm_clock_mhz", ["gpu_sm_clock_hertz"]),
    ],
)
def test_what_is_unknown_has_no_sample(field: str, missing: Sequence[str]) -> None:
    found = on_gpu(**{field: None})

    assert not found.names & set(missing)
    assert "gpu_up" in found.names


def test_a_known_zero_is_a_sample() -> None:
    assert on_gpu(utilization_pct=0.0).value("gpu_utilization_percent") == 0


def test_a_lost_gpu_is_down_and_exports_nothing_else() -> None:
    lost = gpu(health=Health.LOST, state=GpuState.LOST, problem="It fell off the bus.")

    found = scrape(snapshot([lost]))

    assert found.value("gpu_up") == 0
    assert found.value("gpu_state", state="lost") == 1
    told = {s.name for s in found.samples if "gpu" in s.labels}
    assert told == {"gpu_up", "gpu_state", "gpu_xid_errors_total"}


def test_processes_are_counted_by_whether_they_are_jobs_of_ours() -> None:
    running = [
        process(1, on=0),
        process(2, on=0, user=None),
        process(3, on=0, job_ref="7"),
        process(1, on=1),
    ]
    snapshot_rows.open_claim(claim("7", on=0), "gpubox", NOW)

    found = scrape(snapshot(3, running))

    others = "gpu_other_processes_count"
    assert [found.value(others, index=i) for i in "012"] == [2, 1, 0]
    assert [found.value("gpu_job_processes_count", index=i) for i in "012"] == [1, 0, 0]
    assert [found.value("gpu_jobs_count", index=i) for i in "012"] == [1, 0, 0]


def test_a_failing_gpu_exports_no_number_of_processes() -> None:
    found = on_gpu(health=Health.FAILING)

    assert "gpu_other_processes_count" not in found.names


def test_no_command_line_gets_out() -> None:
    secret = process(command=("python", "train.py", "--api-key", "hunter2"))
    into = Families()
    snapshot_rows.record(snapshot(1, [secret]))
    monitor_metrics.add_metrics(into, NOW)

    text = str([metric.samples for metric in into.collect()])

    assert "hunter2" not in text
    assert "train.py" not in text


def test_old_readings_are_not_exported() -> None:
    found = scrape(snapshot(8), later=timedelta(minutes=2))

    assert found.value("gpucoord_snapshot_age_seconds", host="gpubox") == 120
    assert not [name for name in found.names if name.startswith(("gpu_up", "gpu_temp"))]
    assert "gpucoord_host_load1" not in found.names


def test_it_exports_the_readings_of_the_host() -> None:
    box = host(
        cpu_pct=12.5,
        disks=(DiskReading(mount="/", total_bytes=100, free_bytes=40),),
        pressure=Pressure(memory_some_pct=3.5),
        counters=HostCounters(disk_read_bytes=7_000),
    )

    found = scrape(snapshot(0, host=box))

    assert found.value("gpucoord_host_cpu_utilization_percent") == 12.5
    assert found.value("gpucoord_host_memory_available_bytes") == 400 * GIB
    assert found.value("gpucoord_host_disk_free_bytes", mount="/") == 40
    assert found.value("gpucoord_host_disk_read_bytes_total") == 7_000
    pressure = "gpucoord_host_pressure_percent"
    assert found.values(pressure) == [3.5]
    assert found.value(pressure, resource="memory", kind="some") == 3.5


def test_a_driver_that_cannot_be_read_is_down() -> None:
    found = scrape(snapshot(0, probe="nvml", problem="The driver is missing.", failures=4))

    assert found.value("gpucoord_probe_up", probe="nvml") == 0
    assert found.value("gpucoord_probe_failures") == 4


def test_two_hosts_have_separate_series() -> None:
    found = scrape(snapshot(1), snapshot([gpu(1)], host=host(name="other")))

    assert found.value("gpu_up", host="gpubox", gpu=gpu_uuid(0)) == 1
    assert found.value("gpu_up", host="other", gpu=gpu_uuid(1)) == 1


def make_lease(**changes: Any) -> None:
    facts: dict[str, Any] = {
        "name": "sampler:gpubox",
        "loop": "sampler",
        "host": "gpubox",
        "every_s": 1,
        "expires_at": NOW + timedelta(seconds=6),
        "last_tick_at": NOW,
        "ticks": 77,
        "lateness_p50_ms": 1.5,
        "lateness_p99_ms": 20.0,
    }
    Lease.objects.create(**(facts | changes))


def test_it_exports_how_long_gpus_and_cpus_have_been_idle() -> None:
    since = NOW - timedelta(minutes=7)
    quiet = host(cpu_pct=1.0, cpu_idle_since=since)
    found = scrape(snapshot([gpu(idle_since=since)], host=quiet))

    assert found.value("gpucoord_gpu_idle_seconds") == 420
    assert found.value("gpucoord_host_cpu_idle_seconds") == 420


def test_it_exports_the_lateness_of_each_loop() -> None:
    make_lease()

    found = scrape(later=timedelta(seconds=2))

    assert found.value("gpucoord_loop_tick_age_seconds", loop="sampler", host="gpubox") == 2
    assert found.value("gpucoord_loop_lateness_seconds", stat="p50") == 0.0015
    assert found.value("gpucoord_loop_lateness_seconds", stat="p99") == 0.02
    assert found.value("gpucoord_loop_ok") == 1
    assert found.value("gpucoord_loop_ticks_total") == 77


def test_a_loop_that_fails_or_stands_still_is_not_ok() -> None:
    make_lease(failing_since_at=NOW, last_error="ValueError")
    stale = NOW - timedelta(minutes=5)
    make_lease(name="controller:gpubox", loop="controller", last_tick_at=stale)

    found = scrape()

    assert found.values("gpucoord_loop_ok") == [0, 0]


def test_a_loop_that_has_never_ticked_has_no_age() -> None:
    make_lease(last_tick_at=None, lateness_p50_ms=None, lateness_p99_ms=None)

    found = scrape()

    assert found.value("gpucoord_loop_ok") == 0
    assert "gpucoord_loop_tick_age_seconds" not in found.names
    assert "gpucoord_loop_lateness_seconds" not in found.names


def test_loops_of_a_host_that_is_gone_are_left_out() -> None:
    make_lease(last_tick_at=NOW - timedelta(days=8))

    assert "gpucoord_loop_ok" not in scrape().names


def test_events_are_counted_by_kind() -> None:
    for kind in ("GPU_LOST", "GPU_FOUND", "GPU_LOST"):
        events.add(kind, "", now=NOW)

    found = scrape()

    assert found.value("gpucoord_events_total", kind="GPU_LOST") == 2
    assert found.value("gpucoord_events_total", kind="GPU_FOUND") == 1


def test_the_use_of_a_gpu_is_divided_between_jobs_and_others() -> None:
    on_it = [process(1, sm_pct=30.0, job_ref="7"), process(2, sm_pct=20.0)]
    found = scrape(snapshot([gpu(utilization_pct=50.0)], on_it))

    assert found.value("gpucoord_jobs_share_percent") == 30
    assert found.value("gpucoord_others_share_percent") == 20


def test_evictions_begin_at_zero_for_each_gpu() -> None:
    found = scrape(snapshot(1))

    for reason in ("preemption", "owner_present", "model"):
        assert found.value("gpu_evictions_total", reason=reason, gpu=gpu_uuid(0)) == 0


def test_an_eviction_is_counted_by_reason_and_gpu(settings: Any) -> None:
    counters.add_eviction(EvictionReason.OWNER_PRESENT, gpu_uuid(0))
    counters.add_eviction(EvictionReason.PREEMPTION, gpu_uuid(0))
    counters.add_eviction(EvictionReason.PREEMPTION, gpu_uuid(0))

    found = scrape(snapshot(1))

    here = {"host": settings.CONFIG.node, "gpu": gpu_uuid(0)}
    assert found.value("gpu_evictions_total", reason="owner_present", **here) == 1
    assert found.value("gpu_evictions_total", reason="preemption", **here) == 2


def test_evictions_that_an_older_version_counted_have_the_same_label() -> None:
    counters.add(counters.EVICTIONS, f"OwnerPresent {gpu_uuid(0)}")
    counters.add_eviction(EvictionReason.OWNER_PRESENT, gpu_uuid(0))

    assert list(counters.evictions().values()) == [2]


def test_it_counts_the_open_incidents_of_each_rule() -> None:
    incident()
    incident(rule="leak", severity="error", closed_at=NOW)
    found = scrape(snapshot(1))

    at = {"host": "gpubox", "severity": "warning"}
    assert found.value("gpucoord_incidents_open", rule="sustained", **at) == 1
    assert found.value("gpucoord_incidents_open", rule="leak", **at) == 0
    assert found.value("gpucoord_incidents_open", rule="leak", host="gpubox", severity="error") == 0


def test_it_exports_alert_delivery_by_service_only() -> None:
    channel("secret-name", failing_since=NOW)
    channel("off", service="Slack", enabled=False)
    incident()
    steps.write(NOW)
    for problem in ("No answer.", None):
        steps.send_due(lambda letters, limit, p=problem: dict.fromkeys(letters, p), later(5))
        Message.objects.update(due_at=NOW)
    found = scrape(snapshot(1))

    assert found.value("gpucoord_alert_tries_total", service="JSON", result="failed") == 1
    assert found.value("gpucoord_alert_tries_total", service="JSON", result="delivered") == 1
    assert found.value("gpucoord_alert_channels_failing", service="JSON") == 0
    assert found.value("gpucoord_alert_messages_waiting", service="JSON") == 0
    labels = {value for sample in found.samples for value in sample.labels.values()}
    assert not labels & {"secret-name", "Slack"}
