from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace

from monitor.facts.gpus import Condition, HealthReading, Xid
from monitor.facts.readings import CallCost, DiskReading, Pressure
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import counters, events
from monitor.models import Channel, Lease
from monitor.runtime.probes import service_state
from monitor.runtime.probes.service_state import ChildState, ListenerState, ServiceState
from monitor.usage.rows.processes import QUANTITIES
from tests.builders import gpu, gpu_uuid, host, process, snapshot
from tests.monitor.scrape import Scrape

DEPLOY = Path(__file__).resolve().parents[2] / "gpucoord_site" / "deploy"
OURS = re.compile(r"\b((?:gpu|gpucoord|nvml)_\w+)\b(?:\{([^}]*)\})?")


def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana.json").read_text())  # type: ignore[no-any-return]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (rule["expr"] for rule in rules())
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


@pytest.fixture
def found(client: Client, data: Path, settings: Any) -> Scrape:
    """A scrape of a host of which everything is known."""
    now, node = timezone.now(), settings.CONFIG.node
    seen = HealthReading(
        gpu_uuid=gpu_uuid(), clock_reasons=0, ecc_corrected=0, ecc_uncorrected=0,
        retired_pages=0, remapped_corrected=0, remapped_uncorrected=0,
        remap_pending=False, remap_failed=False,
    )  # fmt: skip
    box = host(
        name=node,
        disks=(DiskReading(mount="/", total_bytes=2, free_bytes=1),),
        pressure=Pressure(memory_full_pct=0.0),
    )
    one = replace(gpu(), condition=Condition.HEALTHY)
    cost = CallCost(call="memory", count=1, p50_ms=1, p99_ms=1)
    snapshots.record(snapshot([one], [process()], host=box, health=(seen,), costs=(cost,), at=now))
    counters.add_all(node, dict.fromkeys([(name, "alice") for name in QUANTITIES], 1.0))
    events.add("GPU_FOUND", "", now=now)
    counters.add_xid(Xid(gpu_uuid(), 79))
    Channel.objects.create(name="ops", service="Slack")
    Lease.objects.create(
        name="sampler:x", loop="sampler", host=node, expires_at=now, last_tick_at=now,
        lateness_p50_ms=1, lateness_p99_ms=2,
    )  # fmt: skip
    (data / "run").mkdir()
    child = ChildState(name="web", pid=1, start_ticks=1, since_t=0)
    service_state.write(
        data / "run",
        ServiceState(
            pid=1,
            boot_id="",
            command="up",
            version="0",
            address="",
            started_t=0,
            children=(child,),
            listeners=[ListenerState(name="web", address="")],
        ),
    )
    return Scrape(client.get("/metrics").content.decode())


@pytest.mark.django_db
def test_every_metric_that_they_name_is_there_with_its_labels(found: Scrape) -> None:
    known: dict[str, set[str]] = {}
    for sample in found.samples:
        known.setdefault(sample.name, set()).update(sample.labels)
    missing = []
    for expression in expressions():
        for name, matchers in OURS.findall(expression):
            labels = set(re.findall(r"(\w+)\s*[=!]~?", matchers))
            if name not in known or not labels <= known[name]:
                missing.append((name, matchers))

    assert missing == []


# Names that were asked for, although promtool reserves the suffix for histograms and summaries.
COUNTS = re.compile(
    r"^gpu_\w+_count non-histogram and non-summary metrics should not have \"_count\" suffix$"
)


def promtool() -> str:
    """The program, or the test is skipped where the machine need not have it."""
    program = shutil.which("promtool")
    if program is None:
        if "promtool" in os.environ.get("GPUCOORD_TEST_REQUIRE", "").split(","):
            pytest.fail("promtool is not installed, and GPUCOORD_TEST_REQUIRE asks for it")
        pytest.skip("promtool is not installed")
    return program


def test_prometheus_accepts_the_rules() -> None:
    done = subprocess.run(
        [promtool(), "check", "rules", DEPLOY / "alerts.yml"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.django_db
def test_prometheus_has_nothing_to_say_about_the_metrics(
    client: Client, found: Scrape, settings: Any
) -> None:
    text = client.get("/metrics").content

    done = subprocess.run([promtool(), "check", "metrics"], input=text, capture_output=True)

    said = done.stderr.decode().splitlines()
    assert [line for line in said if not COUNTS.match(line)] == []
    assert not any("quantile" in sample.labels for sample in found.samples)


@pytest.mark.django_db
def test_the_labels_in_their_words_are_there(found: Scrape) -> None:
    known = {label for sample in found.samples for label in sample.labels} | {"instance"}
    legends = [
        target["legendFormat"] for p in dashboard()["panels"] for target in p.get("targets", ())
    ]
    summaries = [rule["annotations"]["summary"] for rule in rules()]

    named = set(re.findall(r"\{\{(\w+)\}\}", " ".join(legends)))
    named |= set(re.findall(r"\$labels\.(\w+)", " ".join(summaries)))

    assert named - known == set()


def test_brackets_are_closed() -> None:
    for expression in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), expression


def test_each_rule_has_a_name_a_severity_and_a_sentence() -> None:
    names = [rule["alert"] for rule in rules()]

    assert len(set(names)) == len(names) > 15
    assert {rule["labels"]["severity"] for rule in rules()} == {"warning", "critical"}
    assert all(rule["annotations"]["summary"] for rule in rules())
    assert all(set(rule) <= {"alert", "expr", "for", "labels", "annotations"} for rule in rules())


def test_simulated_gpus_raise_no_alert() -> None:
    of_gpus = [m for r in rules() for m in OURS.findall(r["expr"]) if m[0].startswith("gpu_")]

    assert of_gpus
    assert [name for name, matchers in of_gpus if 'simulated="false"' not in matchers] == []


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_each_panel_has_an_id_of_its_own() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]

    assert len(set(ids)) == len(ids)


# They would apply to jobs, too, which inherit them: see docs/operators/installation.md.
HARMFUL = [
    "NoNewPrivileges",
    "RestrictSUIDSGID",
    "ProtectHome",
    "ProtectSystem",
    "ReadOnlyPaths",
    "TemporaryFileSystem",
    "PrivateTmp",
    "PrivateDevices",
    "DevicePolicy",
    "DeviceAllow",
    "ProtectClock",
    "ProtectControlGroups",
    "RestrictNamespaces",
    "MemoryDenyWriteExecute",
    "SystemCallFilter",
    "SystemCallArchitectures",
]


def test_the_unit_sets_no_restriction_that_would_break_jobs() -> None:
    lines = (DEPLOY / "gpucoord.service").read_text().splitlines()
    options = [line.partition("=") for line in lines if line and not line.startswith(("#", "["))]
    names = {name for name, _, _ in options}
    dropped = " ".join(value for name, _, value in options if name == "CapabilityBoundingSet")

    assert names.isdisjoint(HARMFUL)
    assert {"UMask", "LimitCORE"} <= names
    # Capabilities that the runner, NVML and nvidia-modprobe need.
    needed = {"CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SYS_ADMIN", "CAP_SYS_MODULE"}
    assert needed.isdisjoint(dropped.replace("~", "").split())
