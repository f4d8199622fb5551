"""When the memory of a job that has ended is back, by its processes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact
from monitor.facts.gpus import ClosureFact, ClosureKind, GpuState
from monitor.facts.readings import GpuReading, Health, ProcessReading
from monitor.gpus.policy.states import Cooling, judge, keep_jobs, with_states
from tests.builders import GIB, NOW, claim, gpu, gpu_uuid, process

ENDED = claim("7", row=1, seen=NOW, until=NOW)
LEFT = process(pid=42, job_ref="7", memory_bytes=12 * GIB)
QUARANTINE = ClosureFact(
    gpu_uuid=gpu_uuid(0), kind=ClosureKind.QUARANTINED, since=NOW, job_ref="7", pid=42
)


def look(
    *processes: ProcessReading,
    after_s: float,
    gpus: tuple[GpuReading, ...] = (gpu(),),
    claims: tuple[ClaimFact, ...] = (ENDED,),
    closures: tuple[ClosureFact, ...] = (),
) -> Cooling:
    at = NOW + timedelta(seconds=after_s)
    return judge(processes, gpus, claims, closures, at)


def test_a_claim_whose_processes_are_gone_is_free() -> None:
    assert look(after_s=0.5) == Cooling(freed=(1,))


def test_others_processes_on_the_gpu_do_not_matter() -> None:
    assert look(process(memory_bytes=70 * GIB), after_s=9) == Cooling(freed=(1,))


def test_a_process_may_take_five_seconds_to_give_its_memory_back() -> None:
    assert look(LEFT, after_s=5) == Cooling()


def test_after_that_its_gpu_is_put_into_quarantine() -> None:
    (stuck,) = look(LEFT, after_s=5.1).stuck

    assert (stuck.gpu_uuid, stuck.job_ref, stuck.pid) == (gpu_uuid(0), "7", 42)
    assert stuck.memory_bytes == 12 * GIB
    assert (
        stuck.text
        == "In quarantine: the job has ended, but 12.0 GiB of job 7 (pid 42) are not back."
    )


def test_it_is_put_there_once() -> None:
    assert look(LEFT, after_s=60, closures=(QUARANTINE,)) == Cooling()


def test_a_quarantine_ends_when_the_memory_is_back() -> None:
    found = look(after_s=600, closures=(QUARANTINE,))

    assert found == Cooling(freed=(1,), recovered=(gpu_uuid(0),))


def test_a_gpu_that_does_not_answer_ends_and_begins_nothing() -> None:
    lost = (gpu(health=Health.LOST),)

    assert look(after_s=600, gpus=lost, closures=(QUARANTINE,)) == Cooling()
    assert look(LEFT, after_s=600, gpus=lost) == Cooling()


def test_a_gpu_that_is_gone_for_good_is_not_waited_for() -> None:
    assert look(after_s=3500, gpus=()) == Cooling()
    assert look(after_s=3700, gpus=()) == Cooling(freed=(1,))


def test_a_claim_is_seen_when_a_process_of_its_job_is_on_its_gpu() -> None:
    there, elsewhere = claim("7", row=1), claim("7", on=1, row=2)

    assert look(LEFT, after_s=0, claims=(there, elsewhere)).started == (1,)


def test_a_dead_pid_stays_its_jobs() -> None:
    dead = process(pid=42, user=None, start_ticks=None, program=None, memory_bytes=GIB)

    (kept,) = keep_jobs([dead], [LEFT], [ENDED])

    assert (kept.job_ref, kept.user, kept.memory_bytes) == ("7", "alice", GIB)


def test_a_pid_that_means_another_process_by_now_is_not_the_jobs() -> None:
    other = process(pid=42, start_ticks=99)

    assert keep_jobs([other], [LEFT], [ENDED]) == (other,)


def test_processes_of_a_running_job_are_identified_by_their_leader() -> None:
    dead = process(pid=42, start_ticks=None)

    assert keep_jobs([dead], [LEFT], [claim("7")]) == (dead,)


Step = dict[str, Any]
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "places": st.booleans(),
            "ends": st.booleans(),
            "shows": st.booleans(),
            "lingers": st.booleans(),
            "after_s": st.sampled_from([1, 2, 8]),
            "lost": st.booleans(),
        }
    ),
    max_size=25,
)


@settings(max_examples=50)
@given(STEPS)
def test_whatever_jobs_do_a_gpu_makes_no_move_that_can_not_be(steps: list[Step]) -> None:
    """Two jobs at most at a time come, show up or not, end, and leave memory behind or not."""
    now, claims, closures = NOW, list[ClaimFact](), list[ClosureFact]()
    before: dict[str, GpuReading] = {}
    for number, step in enumerate(steps):
        now += timedelta(seconds=step["after_s"])
        if step["ends"]:
            claims = [replace_claim(c, until=c.until or now) for c in claims]
        if step["places"] and len(claims) < 2:
            claims.append(claim(str(number), row=number, since=now))
        there = [c for c in claims if (step["lingers"] if c.until else step["shows"])]
        found = [process(pid=100 + (c.row or 0), job_ref=c.job_ref) for c in there]
        health = Health.LOST if step["lost"] else Health.OK
        states = with_states([gpu(health=health)], found, claims, before, now, closures)
        assert states.faults == ()
        before = {g.uuid: g for g in states.gpus}
        cooled = judge(found, states.gpus, claims, closures, now)
        claims = [
            replace_claim(c, seen=now) if c.row in cooled.started else c
            for c in claims
            if c.row not in cooled.freed
        ]
        closures = [c for c in closures if c.gpu_uuid not in cooled.recovered]
        closures += cooled.stuck
        if closures:
            assert states.gpus[0].state in (GpuState.COOLING, GpuState.LOST) or any(
                c.until is None for c in claims
            )


def replace_claim(fact: ClaimFact, **changes: Any) -> ClaimFact:
    return replace(fact, **changes)
