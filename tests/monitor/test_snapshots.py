from __future__ import annotations

import json

from hypothesis import given

from monitor import snapshots
from monitor.readings import HostReading, Snapshot
from tests.monitor import facts


@given(facts.snapshots)
def test_it_survives_the_way_through_json(snapshot: Snapshot) -> None:
    assert snapshots.loads(snapshots.dumps(snapshot)) == snapshot


@given(facts.snapshots)
def test_it_reads_what_a_newer_version_wrote(snapshot: Snapshot) -> None:
    body = json.loads(snapshots.dumps(snapshot))
    body["new_thing"] = 1
    body["host"]["new_thing"] = 1
    body["gpus"][0].append("new_thing")
    for row in body["gpus"][1]:
        row.append(1)
    assert snapshots.loads(json.dumps(body)) == snapshot


def test_it_leaves_out_columns_that_nobody_knows() -> None:
    text = snapshots.dumps(
        Snapshot(seq=1, at=facts.NOW, probe="none", host=HostReading(name="box"))
    )
    assert "cpu_pct" not in text
    assert "temperature_c" not in text
