"""Interactive jobs with idle GPUs are warned and then ended; unknown use is never idle."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User

from monitor.models import Gpu, ProcessMinute, ProcessUse
from scheduler.facts.jobs import JobState
from scheduler.models import Job
from scheduler.queue.planner.sizing import GpuMinute
from scheduler.terminals.policy import InteractivePolicy, Step, decide, ends_at, used_at, warning
from scheduler.terminals.step import IdleTerminals
from tests import jobs_made
from tests.builders import NOW, gpu, gpu_uuid, process, snapshot

POLICY = InteractivePolicy()


def minute(after: float, sm_s: float, known_s: float = 60.0) -> GpuMinute:
    """The minute that begins `after` minutes after NOW."""
    return GpuMinute(
        gpu_uuid=gpu_uuid(0), t=round(NOW.timestamp() + 60 * after), sm_s=sm_s, held_s=60.0,
        known_s=known_s, memory_bytes=None, joules=None,
    )  # fmt: skip


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def test_the_newest_busy_minute_counts() -> None:
    assert used_at([minute(3, 30.0), minute(1, 60.0), minute(5, 2.9)], NOW) == at(4)


def test_without_use_the_start_counts() -> None:
    assert used_at([minute(5, 0.0)], NOW) == NOW


@pytest.mark.parametrize("known_s", [0.0, 40.0])
def test_a_minute_that_was_not_measured_counts_as_use(known_s: float) -> None:
    assert used_at([minute(7, 0.0, known_s)], NOW) == at(8)


@pytest.mark.parametrize(
    ("idle", "warned", "step"),
    [
        (19, None, Step.NOTHING),
        (20, None, Step.WARN),
        (29, 20, Step.NOTHING),
        (30, 20, Step.END),
        # The user gets the whole notice, even if the rule was switched on late.
        (300, None, Step.WARN),
        (309, 300, Step.NOTHING),
        (310, 300, Step.END),
    ],
)
def test_a_warning_comes_before_the_end(idle: int, warned: int | None, step: Step) -> None:
    warned_at = None if warned is None else at(warned)

    assert decide(NOW, warned_at, POLICY, at(idle)) is step


def test_use_after_a_warning_withdraws_it() -> None:
    assert decide(at(25), at(20), POLICY, at(26)) is Step.FORGET


def test_the_rule_can_be_switched_off() -> None:
    assert decide(NOW, None, replace(POLICY, end_minutes=0), at(10_000)) is Step.NOTHING


def test_the_warning_says_when_the_job_ends() -> None:
    assert ends_at(NOW, at(20), POLICY) == at(30)
    assert "for 20 min. The job ends in 10 min" in warning(NOW, POLICY, at(20))


@pytest.fixture
def shell(alice: User) -> Job:
    return jobs_made.running(alice, interactive=True)


@pytest.fixture
def part(db: None) -> IdleTerminals:
    return IdleTerminals("gpubox")


def judge(part: IdleTerminals, minutes: float, **reading: object) -> dict[int, Step]:
    seen = snapshot(at=at(minutes), gpus=(gpu(0, **({"utilization_pct": 0.0} | reading)),))
    return part.judge(seen, at(minutes))


def test_an_idle_shell_is_warned_once_and_then_cancelled(part: IdleTerminals, shell: Job) -> None:
    assert judge(part, 10) == {shell.pk: Step.NOTHING}
    assert judge(part, 21) == {shell.pk: Step.WARN}
    assert judge(part, 22) == {shell.pk: Step.NOTHING}
    shell.refresh_from_db()
    assert "The job ends in" in shell.idle_warning

    assert judge(part, 32) == {shell.pk: Step.END}
    shell.refresh_from_db()
    assert shell.state == JobState.STOPPING.value
    assert shell.cancelled_by == "gpucoord (idle GPU)"


def test_its_processes_keep_it(part: IdleTerminals, shell: Job) -> None:
    judge(part, 21)
    Gpu.objects.create(
        uuid=gpu_uuid(0),
        host="gpubox",
        index=0,
        state_since_at=NOW,
        first_seen_at=NOW,
        last_seen_at=NOW,
    )
    use = ProcessUse.objects.create(
        host="gpubox", pid=11, gpu_id=gpu_uuid(0), job_ref=str(shell.pk), job_owner="alice",
        first_seen_at=NOW, last_seen_at=at(24),
    )  # fmt: skip
    t = round(at(23).timestamp())
    ProcessMinute.objects.create(use=use, t=t, sm_s=30.0, held_s=60.0, known_s=60.0)

    assert judge(part, 25) == {shell.pk: Step.FORGET}
    shell.refresh_from_db()
    assert (shell.idle_warned_at, shell.idle_warning) == (None, "")


def test_nothing_is_judged_while_its_gpu_cannot_be_read(part: IdleTerminals, shell: Job) -> None:
    assert part.judge(None, at(60)) == {}
    assert judge(part, 60, utilization_pct=None) == {}


def test_a_busy_gpu_without_listed_processes_is_no_evidence(
    part: IdleTerminals, shell: Job
) -> None:
    assert judge(part, 60, utilization_pct=90.0) == {}
    listed = snapshot(at=at(60), gpus=(gpu(0, utilization_pct=90.0),), processes=(process(pid=99),))
    assert part.judge(listed, at(60)) == {shell.pk: Step.WARN}


def test_other_jobs_are_left_alone(part: IdleTerminals, alice: User) -> None:
    jobs_made.running(alice)

    assert judge(part, 600) == {}
