from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.attribution import attribute
from monitor.readings import ClaimFact, GpuProcess, ProcessIdentity, ProcessReading
from tests.monitor.facts import NOW

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


def test_a_process_that_nobody_knows_stays_with_its_memory() -> None:
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
