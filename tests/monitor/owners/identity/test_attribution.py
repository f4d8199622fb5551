from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact
from monitor.facts.readings import GpuProcess, ProcessIdentity, ProcessReading
from monitor.owners.policy import attribute
from tests.monitor.made_readings import NOW

LEADER, LEADER_TICKS = 100, 5000
CLAIM = ClaimFact(
    job_ref="7",
    gpu_uuid="GPU-1",
    owner="alice",
    leader_pid=LEADER,
    leader_start_ticks=LEADER_TICKS,
)


def identity(pid: int, **changes: object) -> ProcessIdentity:
    facts = {"pid": pid, "start_ticks": 6000, "created_at": NOW, "user": "nobody", "program": "py"}
    return ProcessIdentity(**(facts | changes))  # type: ignore[arg-type]


def owner(who: ProcessIdentity | None, pid: int = 200, claim: ClaimFact = CLAIM) -> ProcessReading:
    known = {who.pid: who} if who else {}
    (found,) = attribute([GpuProcess(gpu_uuid="GPU-1", pid=pid)], known, [claim])
    return found


def test_the_leader_itself_belongs_to_the_job() -> None:
    found = owner(identity(LEADER, start_ticks=LEADER_TICKS), LEADER)
    assert (found.job_ref, found.job_owner, found.user) == ("7", "alice", "nobody")


def test_a_reused_pid_of_a_leader_does_not() -> None:
    assert owner(identity(LEADER, start_ticks=9000), LEADER).job_ref is None


def test_a_process_in_the_leader_s_session_does() -> None:
    assert owner(identity(200, session=LEADER)).job_ref == "7"


def test_a_descendant_that_left_the_session_does() -> None:
    assert owner(identity(200, session=200, lineage=(150, LEADER, 1))).job_ref == "7"


def test_a_process_older_than_the_leader_does_not() -> None:
    assert owner(identity(200, session=LEADER, start_ticks=10)).job_ref is None


def test_a_stranger_does_not() -> None:
    assert owner(identity(200, session=199, lineage=(1,))).job_ref is None


def test_a_process_with_an_unknown_owner_keeps_its_memory() -> None:
    process = GpuProcess(gpu_uuid="GPU-1", pid=200, memory_bytes=40)
    (found,) = attribute([process], {}, [CLAIM])
    assert (found.user, found.memory_bytes, found.job_ref) == (None, 40, None)


def test_a_claim_without_a_leader_takes_no_process() -> None:
    waiting = replace(CLAIM, leader_pid=None)
    assert owner(identity(200, session=0), claim=waiting).job_ref is None


def test_a_job_s_process_on_a_gpu_that_it_did_not_claim_is_known_as_its() -> None:
    (found,) = attribute(
        [GpuProcess(gpu_uuid="GPU-9", pid=200)], {200: identity(200, session=LEADER)}, [CLAIM]
    )
    assert found.job_ref == "7"


def test_a_process_in_the_cgroup_of_the_leader_belongs_to_the_job() -> None:
    """Also when its parents have ended and it has a session of its own."""
    path = "/gpucoord/0-job-7-1"
    leader = replace(identity(LEADER), start_ticks=50, job_cgroup=path)
    claim = replace(CLAIM, leader_start_ticks=50)
    stray = replace(identity(200, session=200), job_cgroup=path)

    def job_of(leader: ProcessIdentity, stray: ProcessIdentity) -> str | None:
        known = {LEADER: leader, 200: stray}
        (found,) = attribute([GpuProcess(gpu_uuid="GPU-1", pid=200)], known, [claim])
        return found.job_ref

    assert job_of(leader, stray) == "7"
    # A path that looks like a job's, without its leader in it, is an imitation.
    assert job_of(replace(leader, job_cgroup=""), stray) is None
    assert job_of(replace(leader, start_ticks=51), stray) is None
    assert job_of(leader, replace(stray, job_cgroup="")) is None


@pytest.mark.parametrize(
    ("user", "label", "job"), [("alice", "7", "7"), ("bob", "7", None), ("alice", "8", None)]
)
def test_a_labelled_container_belongs_to_the_job_of_its_owner_alone(
    user: str, label: str, job: str | None
) -> None:
    assert owner(identity(200, user=user, labelled_job=label)).job_ref == job


def test_a_labelled_container_without_an_owner_belongs_to_no_job() -> None:
    assert owner(identity(200, user=None, labelled_job="7")).job_ref is None


pids = st.integers(1, 8)


@given(
    st.lists(st.builds(GpuProcess, gpu_uuid=st.sampled_from(["a", "b"]), pid=pids)),
    st.sets(pids),
    st.lists(
        st.builds(
            ClaimFact,
            job_ref=st.sampled_from("123"),
            gpu_uuid=st.just("a"),
            owner=st.just("alice"),
            leader_pid=st.none() | pids,
        )
    ),
)
def test_no_process_is_lost_or_made_up(
    processes: list[GpuProcess], known: set[int], claims: list[ClaimFact]
) -> None:
    found = attribute(processes, {pid: identity(pid) for pid in known}, claims)
    assert [(p.gpu_uuid, p.pid) for p in found] == [(p.gpu_uuid, p.pid) for p in processes]
    refs = {claim.job_ref for claim in claims}
    assert all(p.job_ref is None or p.job_ref in refs for p in found)
    assert all((p.user is not None) == (p.pid in known) for p in found)
