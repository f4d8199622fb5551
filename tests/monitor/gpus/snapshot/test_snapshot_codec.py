from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given

from monitor.facts.gpus import Ailment, Condition, GpuState, HealthReading
from monitor.facts.readings import (
    BaselineProcess,
    CallCost,
    DiskReading,
    GpuReading,
    Health,
    HostCounters,
    HostReading,
    Limits,
    OwnerReading,
    Presence,
    Pressure,
    ProcessReading,
    Snapshot,
)
from monitor.gpus.rows import snapshot as snapshot_codec
from tests.monitor import made_readings as facts


@given(facts.snapshots)
def test_it_survives_the_way_through_json(snapshot: Snapshot) -> None:
    assert snapshot_codec.loads(snapshot_codec.dumps(snapshot)) == snapshot


@given(facts.snapshots)
def test_it_reads_what_a_newer_version_wrote(snapshot: Snapshot) -> None:
    body = json.loads(snapshot_codec.dumps(snapshot))
    body["new_thing"] = 1
    body["host"]["new_thing"] = 1
    for row in body.get("gpus", []):
        row["new_thing"] = 1
    assert snapshot_codec.loads(json.dumps(body)) == snapshot


def test_it_leaves_out_fields_without_a_value() -> None:
    text = snapshot_codec.dumps(
        Snapshot(seq=1, at=facts.NOW, probe="none", host=HostReading(name="box"))
    )
    assert "cpu_pct" not in text
    assert "temperature_c" not in text


EARLIER = Snapshot(
    seq=7,
    at=facts.NOW,
    probe="nvml",
    host=HostReading(
        name="box",
        cpu_pct=12.5,
        disks=(DiskReading(mount="/", total_bytes=100, free_bytes=40),),
        pressure=Pressure(cpu_some_pct=1.5),
        counters=HostCounters(cpu_busy_s=3.0),
        limits=Limits(cpus=2.0, visible_gpus=("0", "1")),
    ),
    gpus=(
        GpuReading(uuid="GPU-0", index=0, name="A", state=GpuState.IDLE, power_w=70.0),
        GpuReading(uuid="GPU-1", index=1, health=Health.LOST, condition=Condition.LOST),
    ),
    processes=(ProcessReading(gpu_uuid="GPU-0", pid=3, start_ticks=9, command=("python", "x")),),
    health=(
        HealthReading(
            gpu_uuid="GPU-1",
            xids=((79, facts.NOW),),
            ailments=(Ailment("xid", Condition.LOST, "It fell off the bus."),),
            reported=("xid",),
        ),
    ),
    costs=(CallCost(call="processes", count=2, errors=0, every=1, p50_ms=0.5, p99_ms=2.0),),
    owners=(
        OwnerReading(
            gpu_uuid="GPU-0",
            presence=Presence.OWNER,
            since=facts.NOW,
            residents=(BaselineProcess(program="Xorg", memory_bytes=5, level_since=facts.NOW),),
        ),
    ),
)


def test_it_reads_what_an_earlier_build_wrote() -> None:
    text = Path(__file__).with_name("earlier_snapshot.json").read_text()

    assert snapshot_codec.loads(text) == EARLIER


def test_a_text_that_is_no_snapshot_is_refused() -> None:
    for text in (
        "",
        "[]",
        "{}",
        '{"host": {"name": "box"}}',
        '{"host": []}',
        '{"gpus": [[], [1]]}',
    ):
        with pytest.raises(ValueError):
            snapshot_codec.loads(text)


def test_a_name_that_is_not_utf_8_does_not_keep_it_from_the_database() -> None:
    text = snapshot_codec.dumps(
        Snapshot(seq=1, at=facts.NOW, probe="none", host=HostReading(name="box\udc80"))
    )

    assert text.encode()
    assert snapshot_codec.loads(text).host.name.startswith("box")
