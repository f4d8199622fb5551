from __future__ import annotations

import json

from hypothesis import given

from monitor.facts.readings import HostReading, Snapshot
from monitor.gpus.snapshot import rows as snapshot_codec
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


def test_a_name_that_is_not_utf_8_does_not_keep_it_from_the_database() -> None:
    text = snapshot_codec.dumps(
        Snapshot(seq=1, at=facts.NOW, probe="none", host=HostReading(name="box\udc80"))
    )

    assert text.encode()
    assert snapshot_codec.loads(text).host.name.startswith("box")
