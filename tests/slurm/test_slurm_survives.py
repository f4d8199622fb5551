"""Jobs in Slurm while slurmctld, slurmd and gpucoord are killed: none is lost, none runs twice."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone
from msgspec.structs import replace

from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Event
from scheduler.execution.engines.facts import SubmitResult, Ticket
from scheduler.execution.engines.slurm import SlurmEngine
from scheduler.facts.jobs import Requirement, YieldOptions
from scheduler.jobs.rows import changes
from scheduler.models import EngineTask, Job
from tests.builders import host, snapshot
from tests.pace import Stopwatch
from tests.processes.scheduling import (
    Scheduler,
    attempt_of,
    kill_runner_of,
    log_of,
    reloaded,
    submit,
)
from tests.slurm.cluster import NODES, Cluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.django_db(transaction=True),
]
# Slurm delays a job that it puts back into its queue.
LONG_S, REQUEUED_S, KILL_EVERY_S = 30.0, 120.0, 2.0
# Exit code 85 would say that the job saved its work and is to run again.
EXIT_CODES = 85


def abandon(scheduler: Scheduler) -> None:
    """As after SIGKILL of gpucoord: a new pass that knows rows, files and Slurm only."""
    scheduler._pass = scheduler._open()


def storm(
    scheduler: Scheduler, cluster: Cluster, owners: list[User], count: int, seconds: float
) -> dict[int, Job]:
    """Submit jobs over `seconds` while random parts are killed."""
    chance = random.Random(7)
    kills: list[Callable[[], None]] = [
        lambda: _replace(cluster, "slurmctld"),
        lambda: _replace(cluster, chance.choice(NODES)),
        lambda: abandon(scheduler),
    ]
    jobs: dict[int, Job] = {}
    began = killed_at = monotonic()
    while len(jobs) < count or monotonic() - began < seconds:
        passed = monotonic() - began
        if len(jobs) < min(count, 1 + passed * count / seconds):
            code = len(jobs) % EXIT_CODES
            command = f"echo ran; sleep {chance.uniform(0, 2):.1f}; exit {code}"
            owner = owners[len(jobs) % len(owners)]
            jobs[len(jobs)] = submit(owner, command, yield_options=YieldOptions(requeue=True))
        if monotonic() - killed_at > KILL_EVERY_S:
            chance.choice(kills)()
            killed_at = monotonic()
        scheduler.step()
        sleep(0.05)
    cluster.wait_until_up()
    return jobs


def _replace(cluster: Cluster, part: str) -> None:
    cluster.kill_part(part)
    cluster.start_part(part)


def check(scheduler: Scheduler, cluster: Cluster, jobs: dict[int, Job], seconds: float) -> None:
    """Each job has its exit code, and ran once; once more only if Slurm itself has ended it.

    A slurmctld that is killed loses its newest jobs. Their nodes end those that still run.
    """
    ids = [job.pk for job in jobs.values()]
    waiting = Job.objects.filter(pk__in=ids).exclude(state="finished")
    try:
        scheduler.run_until(lambda: not waiting.exists(), within_s=seconds)
    except AssertionError:
        tasks = list(EngineTask.objects.filter(job__in=waiting).values())
        pytest.fail(f"{tasks} {cluster.run('squeue', '-a', '-t', 'all')} {cluster.run('sinfo')}")
    rows = {number: reloaded(job) for number, job in jobs.items()}
    wrong = {n: job for n, job in rows.items() if job.exit_code != n % EXIT_CODES}
    assert not wrong, "\n".join(_told_by_slurm(cluster, job) for job in wrong.values())
    for number, job in rows.items():
        *earlier, last = job.attempts.order_by("number")
        assert log_of(job, last.number) == "ran\n", number
        for attempt in earlier:
            assert attempt.outcome in ("lost", "preempted"), number
            assert _was_ended_by_slurm(cluster, attempt.engine_ref), (number, attempt.problem)
        # Attempts that gpucoord does not know would write here too.
        numbers = {attempt.number for attempt in (*earlier, last)}
        assert {path.parent.name for path in _logs(job)} <= {f"attempt-{n}" for n in numbers}


def _told_by_slurm(cluster: Cluster, job: Job) -> str:
    """The lines about the tasks of a job in the logs of Slurm."""
    attempts = list(job.attempts.order_by("number"))
    refs = "|".join(attempt.engine_ref for attempt in attempts)
    about = re.compile(rf"(?i)\bjob(id)?[= ]({refs})\b|JobId=({refs})\b")
    lines = [
        line
        for path in sorted(cluster.folder.glob("slurm*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if about.search(line)
    ]
    ends = [(attempt.engine_ref, attempt.outcome, attempt.problem) for attempt in attempts]
    words = [(task.ref, task.word, task.reason) for task in EngineTask.objects.filter(job=job)]
    return "\n".join([f"job {job.pk}: {job.outcome} {ends} {words}", *lines])


def _was_ended_by_slurm(cluster: Cluster, ref: str) -> bool:
    """Whether a node says that it has ended the task of this name."""
    texts = [(cluster.folder / f"slurmd.{node}.log").read_text() for node in NODES]
    return any(f"*** JOB {ref} ON " in text for text in texts)


def _logs(job: Job) -> list[Path]:
    return sorted((Path(f"{settings.DATA}-jobs") / str(job.pk)).glob("attempt-*/output.log"))


def _output(job: Job) -> str:
    """Of all its attempts, also those that gpucoord does not know."""
    return "".join(path.read_text() for path in _logs(job))


def test_20_jobs_survive_kills(scheduler: Scheduler, slurm: Cluster, ann: User, ben: User) -> None:
    jobs = storm(scheduler, slurm, [ann, ben], 20, 12)

    check(scheduler, slurm, jobs, REQUEUED_S)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_200_jobs_survive_kills(scheduler: Scheduler, slurm: Cluster, ann: User, ben: User) -> None:
    jobs = storm(scheduler, slurm, [ann, ben], 200, 120)

    check(scheduler, slurm, jobs, 600)


def test_a_submission_whose_answer_was_lost_is_matched_by_its_nonce(
    scheduler: Scheduler, slurm: Cluster, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(ann, "echo ran")
    scheduler.run_until(lambda: EngineTask.objects.filter(job=job), within_s=LONG_S)
    abandon(scheduler)
    real = SlurmEngine.submit

    def submit_and_die(engine: SlurmEngine, ticket: Ticket) -> object:
        real(engine, ticket)
        raise RuntimeError("killed")

    monkeypatch.setattr(SlurmEngine, "submit", submit_and_die)
    scheduler.run_until(
        lambda: EngineTask.objects.filter(job=job, tried_at__isnull=False), within_s=LONG_S
    )
    monkeypatch.setattr(SlurmEngine, "submit", lambda *_: pytest.fail("submitted again"))
    abandon(scheduler)

    assert scheduler.run_to(job, within_s=LONG_S).outcome == "succeeded"
    assert log_of(job) == "ran\n"


def test_a_nonce_that_is_submitted_twice_runs_once(
    scheduler: Scheduler, slurm: Cluster, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SlurmEngine.submit

    def submit_twice(engine: SlurmEngine, ticket: Ticket) -> object:
        assert real(engine, ticket).result is SubmitResult.ACCEPTED
        return real(engine, ticket)

    monkeypatch.setattr(SlurmEngine, "submit", submit_twice)
    job = scheduler.run_to(submit(ann, 'echo "$SLURM_JOB_ID"; sleep 2'), within_s=LONG_S)

    assert job.outcome == "succeeded"
    assert _output(job) == f"{attempt_of(job).engine_ref}\n"


def test_slurm_away_is_told_and_running_jobs_end(
    scheduler: Scheduler, slurm: Cluster, ann: User
) -> None:
    job = scheduler.run_to(submit(ann, "sleep 4; exit 3"), "running", within_s=LONG_S)
    slurm.kill_part("slurmctld")
    try:
        late = submit(ann, "true")
        scheduler.run_until(
            lambda: [b["code"] for b in reloaded(late).blockers] == ["EngineAway"],
            within_s=LONG_S,
        )
        assert scheduler.run_to(job, within_s=LONG_S).exit_code == 3
        # A list that was requested before slurmctld starts again must fail first.
        scheduler.run_until(Event.objects.filter(kind="ENGINE_UNAVAILABLE").exists, within_s=LONG_S)
    finally:
        slurm.start_part("slurmctld")

    slurm.wait_until_up()
    assert scheduler.run_to(late, within_s=REQUEUED_S).outcome == "succeeded"
    kinds = list(Event.objects.filter(kind__startswith="ENGINE").values_list("kind", flat=True))
    assert set(kinds) == {"ENGINE_UNAVAILABLE", "ENGINE_AVAILABLE"}


def test_a_slurm_that_hangs_delays_no_step_and_running_jobs_end(
    scheduler: Scheduler, slurm: Cluster, ann: User
) -> None:
    job = scheduler.run_to(submit(ann, "sleep 4; exit 3"), "running", within_s=LONG_S)
    slurm.signal_part("slurmctld", signal.SIGSTOP)
    try:
        late, longest = submit(ann, "true"), 0.0
        watch = Stopwatch()
        while codes_of(late) != ["EngineAway"] or reloaded(job).state != "finished":
            assert not watch.has_run(2 * LONG_S)
            step = Stopwatch()
            scheduler.step()
            longest = max(longest, step.seconds)
            sleep(0.1)
    finally:
        slurm.signal_part("slurmctld", signal.SIGCONT)

    assert reloaded(job).exit_code == 3
    assert longest < 2
    assert scheduler.run_to(late, within_s=REQUEUED_S).outcome == "succeeded"
    assert late.attempts.count() == 1


def codes_of(job: Job) -> list[str]:
    return [blocker["code"] for blocker in reloaded(job).blockers]


def test_a_job_whose_runner_and_guardian_were_killed_says_what_slurm_says(
    scheduler: Scheduler, slurm: Cluster, ann: User
) -> None:
    job = scheduler.run_to(submit(ann, "sleep 600"), "running", within_s=LONG_S)

    kill_runner_of(job)
    job = scheduler.run_to(job, within_s=LONG_S)

    assert job.outcome == "lost"
    assert "Slurm says: FAILED, reason NonZeroExitCode" in job.problem


def test_after_a_change_of_the_engine_jobs_in_slurm_end_there_and_waiting_ones_run_here_once(
    scheduler: Scheduler, slurm: Cluster, ann: User
) -> None:
    running = scheduler.run_to(submit(ann, "sleep 15; exit 3"), "running", within_s=LONG_S)
    blocking = [submit(ann, "sleep 600", Requirement(gpus=2)) for _ in NODES]
    for job in blocking:
        scheduler.run_to(job, "running", within_s=LONG_S)
    waiting = submit(ann, "echo ran", Requirement(gpus=1))
    handed_over = EngineTask.objects.filter(job=waiting).exclude(ref="").exclude(word="")
    scheduler.run_until(handed_over.exists, within_s=LONG_S)
    ref = handed_over.get().ref

    settings.CONFIG = replace(settings.CONFIG, engine="local")
    abandon(scheduler)

    def has_ended() -> bool:
        here = host(name=settings.CONFIG.node)
        snapshots.record(snapshot(1, host=here, at=timezone.now()))
        return reloaded(waiting).state == "finished"

    scheduler.run_until(has_ended, within_s=LONG_S)
    waiting = reloaded(waiting)
    running = scheduler.run_to(running, within_s=LONG_S)
    assert (running.exit_code, attempt_of(running).engine) == (3, "slurm")
    assert (waiting.outcome, attempt_of(waiting).engine, log_of(waiting)) == (
        "succeeded", "", "ran\n",
    )  # fmt: skip
    slurm.wait_for(
        lambda: "CANCELLED" in slurm.run("scontrol", "show", "job", ref), LONG_S, "its withdrawal"
    )
    for job in blocking:
        changes.cancel(Job.objects.filter(pk=job.pk), "ann", timezone.now())
        assert scheduler.run_to(job, within_s=LONG_S).outcome == "cancelled"
