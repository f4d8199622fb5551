"""One broken row changes nothing for the other hosts and GPUs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from monitor.facts.gpus import ClosureFact, ClosureKind, GpuState
from monitor.gpus.policy.states import with_states
from monitor.gpus.rows import closures as availability
from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents.policy.findings import bookings
from monitor.models import Claim, GpuClosure, LatestSnapshot
from tests.builders import NOW, claim, gpu_uuid, host, snapshot

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '{"seq": 1}', '{"at": "soon"}'])
def test_a_snapshot_that_cannot_be_read_hides_no_other_host_and_is_logged_once(
    body: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots._faults, "_logged_at", {})
    for name in ("a", "b", "c"):
        snapshots.record(replace(snapshot(1), host=host(name=name)))
    LatestSnapshot.objects.filter(host="b").update(body=body)

    for _ in range(3):
        assert [shot.host.name for shot in snapshots.newest_all()] == ["a", "c"]
        assert snapshots.newest("b") is None
    assert [record.kind for record in caplog.records] == ["SNAPSHOT_UNREADABLE"]


def test_a_claim_of_an_unknown_kind_keeps_its_gpu_and_is_nobodys_booking() -> None:
    snapshots.open_claim(claim("1", on=0), "gpubox", NOW)
    snapshots.open_claim(claim("2", on=1), "gpubox", NOW)
    Claim.objects.filter(job_ref="1").update(kind="odd")

    claims = snapshots.open_claims("gpubox")

    assert [(c.job_ref, c.kind.value) for c in claims] == [("1", "unknown"), ("2", "script")]
    assert set(bookings(claims)) == {("2", gpu_uuid(1))}
    states = with_states(snapshot(3).gpus, (), claims, {}, NOW)
    assert [gpu.state for gpu in states.gpus] == [
        GpuState.EXTERNAL, GpuState.BOOTING_SCRIPT, GpuState.IDLE
    ]  # fmt: skip


def test_a_closure_of_an_unknown_kind_keeps_its_gpu_closed() -> None:
    fact = ClosureFact(gpu_uuid=gpu_uuid(0), kind=ClosureKind.PAUSED, since=NOW, by="olga")
    for number in (0, 1):
        availability.close(replace(fact, gpu_uuid=gpu_uuid(number)), "gpubox")
    GpuClosure.objects.filter(gpu_uuid=gpu_uuid(0)).update(kind="odd")

    closures = availability.on("gpubox")

    assert [closure.kind for closure in closures] == [ClosureKind.UNKNOWN, ClosureKind.PAUSED]
    assert closures[0].text.startswith("Closed for a reason that this version")
