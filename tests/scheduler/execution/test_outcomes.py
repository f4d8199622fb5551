from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.facts.readings import Health
from monitor.gpus.rows import snapshot as monitor_store
from monitor.journal.rows import counters
from monitor.models import Claim, Event
from scheduler.dispatch.steps import yields as yield_requests
from scheduler.execution.steps import outcomes
from scheduler.facts.jobs import Dependency, Requirement, YieldOptions
from scheduler.facts.plans import Yield
from scheduler.jobs.policy import MOST_LOST
from scheduler.jobs.rows import changes as job_changes
from scheduler.jobs.rows import durations, transitions
from scheduler.models import Attempt, Job, ModelService
from scheduler.queue.wording import text
from scheduler.runner.attempt_files import AttemptFiles
from scheduler.runner.spec import Result
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
LATER = NOW + timedelta(hours=1)
REQUEUE = YieldOptions(requeue=True)
OUT_OF_MEMORY = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"


def _attempt(job: Job) -> Attempt:
    attempt = Attempt.objects.select_related("job__owner", "yield_request")
    return attempt.get(job=job, ended_at=None)


def _end(job: Job, tail: bytes = b"", **facts: Any) -> Job:
    attempt = _attempt(job)
    result = Result(nonce=attempt.nonce, ended_at=LATER.timestamp(), **({"exit_code": 1} | facts))
    look = AttemptFiles(claimed=None, runner_alive=False, started=None, result=result)
    outcomes.record_end(attempt, look, tail, LATER)
    job.refresh_from_db()
    return job


def _lose(job: Job) -> Job:
    look = AttemptFiles(claimed=None, runner_alive=False, started=None, result=None)
    outcomes.record_lost(_attempt(job), look, "The machine restarted.", LATER)
    job.refresh_from_db()
    return job


@pytest.mark.parametrize("gpus", [0, 1])
def test_the_end_of_a_job_has_its_gpus_read_at_once_if_another_waits_for_one(
    alice: User, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    woken: list[str] = []
    monkeypatch.setattr(transitions, "wake", lambda name, **_: woken.append(name))
    jobs_made.waiting(alice, requirement=Requirement(gpus=gpus))

    _end(jobs_made.running(alice), exit_code=0)

    assert woken == ["sampler"] * gpus


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"exit_code": 3}, "failed with exit code 3"),
        ({"exit_code": None, "signal": 9}, "failed with signal 9"),
        ({"exit_code": 0}, "succeeded"),
    ],
)
def test_the_event_of_an_end_says_how_the_job_ended(
    alice: User, facts: dict[str, Any], words: str
) -> None:
    job = _end(jobs_made.running(alice, name="train"), **facts)

    assert Event.objects.get(kind="JOB_FINISHED").text == f"Job {job.pk} (train) {words}"


def test_a_job_that_is_stopped_without_a_request_is_told_with_the_reason(alice: User) -> None:
    job = jobs_made.running(alice, name="train")

    assert transitions.mark_stopping(_attempt(job), "It exceeded its memory.", NOW)

    event = Event.objects.get(kind="JOB_STOPPING")
    assert (event.text, event.severity) == (
        f"Job {job.pk} (train): It exceeded its memory.",
        "warning",
    )
    assert not transitions.mark_stopping(_attempt(job), "Once more.", NOW)


def test_the_claim_of_a_job_of_a_model_is_one_of_a_model(alice: User) -> None:
    service = ModelService.objects.create(name="m", argv=["serve"])
    of_model, other = jobs_made.waiting(alice), jobs_made.waiting(alice)
    Job.objects.filter(pk=of_model.pk).update(model_service=service)

    for index, job in enumerate((of_model, other)):
        jobs_made.place_again(job, (index,))

    claims = Claim.objects.order_by("pk").values_list("job_ref", "kind", "phase", "tasks_completed")
    assert list(claims) == [
        (str(of_model.pk), "llm", "booting", 0),
        (str(other.pk), "script", "", None),
    ]


def test_a_job_killed_with_its_machine_ended_when_it_was_last_seen(alice: User) -> None:
    job, seen_at = jobs_made.running(alice), NOW + timedelta(minutes=20)
    look = AttemptFiles(claimed=None, runner_alive=False, started=None, result=None)
    outcomes.record_lost(_attempt(job), look, "It restarted.", LATER, seen_at=seen_at)
    job.refresh_from_db()

    assert job.ended_at == seen_at
    assert set(Claim.objects.values_list("until_at", flat=True)) == {seen_at}


@pytest.mark.parametrize(("late_s", "until_s"), [(14, 14), (16, 0), (8 * 3600, 0)])
def test_the_gpus_of_a_job_count_until_its_end_when_that_is_noticed_late(
    alice: User, late_s: int, until_s: int
) -> None:
    job = jobs_made.running(alice)
    attempt = _attempt(job)
    result = Result(nonce=attempt.nonce, ended_at=LATER.timestamp(), exit_code=0)
    look = AttemptFiles(claimed=None, runner_alive=False, started=None, result=result)
    outcomes.record_end(attempt, look, b"", LATER + timedelta(seconds=late_s))

    until_at = LATER + timedelta(seconds=until_s)
    assert set(Claim.objects.values_list("until_at", flat=True)) == {until_at}


def _ask(job: Job, for_job: Job | None = None, **changes: Any) -> None:
    body = {"job_id": job.pk, "code": "Preempted", "text": "Job 9 needs its GPU."}
    assert yield_requests.ask(Yield(**(body | changes), for_job=for_job and for_job.pk), LATER)


def _kinds() -> list[str]:
    return list(Event.objects.order_by("id").values_list("kind", flat=True))


def test_a_job_that_saved_its_work_waits_again(alice: User) -> None:
    job = jobs_made.running(alice)
    _ask(job, for_job=jobs_made.waiting(alice))
    _end(job, exit_code=85, yielded=True)

    assert (job.state, job.outcome, job.requeues, job.started_at) == ("queued", "", 1, None)
    assert job.may_preempt_at == LATER + timedelta(minutes=30)
    assert job.attempts.get().outcome == "preempted"
    assert not Claim.objects.filter(until_at=None).exists()
    assert _kinds()[-3:] == ["JOB_YIELDING", "JOB_PREEMPTED", "JOB_REQUEUED"]
    assert [reason for _, _, reason in counters.evictions()] == ["preemption"]
    assert Event.objects.get(kind="JOB_REQUEUED").text == (
        f"Job {job.pk} (python train.py) waits again: it saved its work"
    )


def test_a_job_that_had_to_leave_unsaved_is_over(alice: User) -> None:
    job = jobs_made.running(alice)
    _ask(job, counts=False)
    _end(job, exit_code=None, signal=15, stopped="yield", yielded=True)

    assert (job.state, job.outcome) == ("finished", "preempted")
    assert job.problem == (
        "It had to leave its GPU and was ended by signal 15 (SIGTERM) before it had saved its work"
        " and exited by itself."
    )
    assert _kinds()[-2:] == ["JOB_EVICTED", "JOB_FINISHED"]


def test_a_job_that_failed_before_it_heard_of_it_has_failed(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=REQUEUE)
    _ask(job)

    assert _end(job, exit_code=1, yielded=False).outcome == "failed"


def test_a_job_that_was_done_when_it_was_asked_has_succeeded(alice: User) -> None:
    job = jobs_made.running(alice)
    _ask(job)

    assert _end(job, exit_code=0, yielded=True).outcome == "succeeded"


def test_who_ends_politely_at_sigterm_is_not_done(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=REQUEUE)
    _ask(job)

    assert _end(job, exit_code=0, stopped="yield", yielded=True).state == "queued"


def test_a_job_that_is_cancelled_while_it_yields_is_cancelled(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=REQUEUE)
    _ask(job)
    assert job_changes.request_cancel(job.pk, "alice", LATER)

    assert _end(job, exit_code=85, stopped="asked", yielded=True).outcome == "cancelled"


def test_a_cancel_in_the_last_moment_wins_over_a_requeue(alice: User) -> None:
    job = jobs_made.running(alice)
    _ask(job)
    attempt = _attempt(job)
    job_changes.request_cancel(job.pk, "alice", LATER)
    result = Result(nonce=attempt.nonce, ended_at=LATER.timestamp(), exit_code=85, yielded=True)
    look = AttemptFiles(claimed=None, runner_alive=False, started=None, result=result)
    outcomes.record_end(attempt, look, b"", LATER)

    job.refresh_from_db()
    assert (job.state, job.outcome) == ("finished", "cancelled")
    assert _kinds()[-1] == "JOB_FINISHED"


def test_after_too_many_yields_it_is_held_until_it_is_released(alice: User) -> None:
    job = jobs_made.running(alice)
    Job.objects.filter(pk=job.pk).update(requeues=5)
    _ask(job, for_job=jobs_made.waiting(alice))
    _end(job, exit_code=85, yielded=True)

    assert (job.state, job.held_by) == ("queued", "")
    assert job.held == "It had to make room for others 6 times."


def test_what_the_machine_lost_runs_again_only_if_it_asked_for_that(alice: User) -> None:
    yield_request, other = (
        jobs_made.running(alice, yield_options=REQUEUE),
        jobs_made.running(alice, on=(1,)),
    )

    assert (_lose(yield_request).state, _lose(other).outcome) == ("queued", "lost")
    assert yield_request.attempts.get().outcome == "lost"


@pytest.mark.parametrize("completed", [0, 1])
def test_losses_are_counted_since_the_last_attempt_that_completed_an_item(
    alice: User, completed: int
) -> None:
    job = jobs_made.running(alice, yield_options=REQUEUE)
    Attempt.objects.update(items_completed=completed)
    _lose(job)
    jobs_made.place_again(job, (0,), NOW)
    job.refresh_from_db()

    assert (_lose(job).retry_at is None) == (completed == 1)


def test_who_may_stay_and_leaves_all_the_same_is_not_blamed_for_it(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=YieldOptions(preemptible=True))
    other = jobs_made.waiting(alice, priority=5)
    _ask(job, for_job=other)
    job_changes.request_cancel(other.pk, "alice", LATER)
    for yield_request in yield_requests.withdrawable("gpubox", LATER):
        yield_requests.withdraw(yield_request, LATER)
    _end(job, exit_code=85)

    assert (job.state, job.requeues, job.may_preempt_at) == ("queued", 0, None)


def test_who_was_released_may_be_lost_as_often_again(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=REQUEUE)
    for _ in range(MOST_LOST):
        assert _lose(job).held == ""
        Job.objects.filter(pk=job.pk).update(retry_at=None)
        jobs_made.place_again(job, at=LATER)
    assert _lose(job).held == f"The machine lost it {MOST_LOST + 1} times."
    assert job_changes.release_job(job.pk, "alice", LATER)
    Job.objects.filter(pk=job.pk).update(retry_at=None)
    jobs_made.place_again(job, at=LATER + timedelta(hours=1))

    assert _lose(job).held == ""


def test_a_lost_job_that_was_being_stopped_runs_again(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=REQUEUE)
    Job.objects.filter(pk=job.pk).update(state="stopping")

    assert _lose(job).state == "queued"


def test_a_shutdown_is_the_machines_doing(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=REQUEUE)

    assert _end(job, signal=15, exit_code=None, stopped="asked").state == "queued"


def test_a_job_on_a_lost_gpu_runs_again_if_it_asked_for_that(alice: User) -> None:
    monitor_store.record(snapshot([gpu(0, health=Health.LOST), gpu(1)]))
    lost = jobs_made.running(alice, yield_options=REQUEUE)
    other = jobs_made.running(alice, on=(1,), yield_options=REQUEUE)

    assert (_end(lost).state, _end(other).outcome) == ("queued", "failed")


def test_a_failure_is_tried_again_after_a_pause(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=YieldOptions(retries=1))
    _end(job)

    assert (job.state, job.failures) == ("queued", 1)
    assert job.retry_at is not None
    assert 54 <= (job.retry_at - LATER).total_seconds() <= 66
    assert job.attempts.get().outcome == "failed"


def test_out_of_gpu_memory_it_asks_for_more(alice: User) -> None:
    monitor_store.record(snapshot(1))
    asks = Requirement(memory_bytes=20 * GIB)
    job = jobs_made.running(alice, requirement=asks, yield_options=YieldOptions(retries=2))
    _end(job, tail=OUT_OF_MEMORY)

    assert job.gpu_memory_bytes == 25 * GIB
    assert job.attempts.get().problem == "It ran out of GPU memory."


def test_a_job_that_the_kernel_killed_for_memory_says_so(alice: User) -> None:
    job = _end(jobs_made.running(alice), exit_code=137, out_of_memory=True)

    assert (job.outcome, job.problem) == ("failed", "It was killed because it ran out of memory.")


def test_a_job_that_took_more_than_its_limit_hears_what_that_is(alice: User) -> None:
    job = _end(jobs_made.running(alice, memory_bytes=2 * GIB), exit_code=137, out_of_memory=True)

    assert job.problem.endswith("ran out of memory. It may take 2 GiB of the host's.")


def test_who_waits_for_a_job_that_runs_again_waits_on(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=YieldOptions(retries=1))
    waiting = jobs_made.waiting(alice, after=(Dependency(on=job.pk),))
    _end(job)

    waiting.refresh_from_db()
    assert waiting.state == "queued"


def test_a_job_whose_gpu_was_wanted_before_it_began_waits_again(alice: User) -> None:
    job, _ = jobs_made.placed(alice)
    _ask(job, counts=True)
    outcomes.record_unstarted(_attempt(job), LATER)

    job.refresh_from_db()
    assert (job.state, job.requeues) == ("queued", 0)


def test_attempts_that_ran_do_not_count_as_failed_starts(alice: User) -> None:
    job = jobs_made.running(alice, yield_options=YieldOptions(retries=9))
    for number in range(2, 8):
        _end(job)
        Job.objects.filter(pk=job.pk).update(retry_at=None)
        jobs_made.place_again(job)
        assert _attempt(job).number == number
    outcomes.record_unstarted(_attempt(job), LATER)

    job.refresh_from_db()
    assert job.state == "queued"


def _refuse(job: Job, why: str = "gpu0.lock can't be locked") -> Job:
    jobs_made.place_again(job)
    return _end(job, exit_code=None, refused=why)


def test_a_job_that_runners_go_on_refusing_pauses_longer_and_longer(alice: User) -> None:
    job = jobs_made.waiting(alice)

    pauses = []
    for _ in range(5):
        at = _refuse(job).retry_at
        pauses.append(None if at is None else (at - LATER).total_seconds())

    assert pauses == [None, None, 10, 20, 40]
    (blocker,) = durations.load(LATER)[job.pk]
    assert blocker.code == "Backoff"
    assert "could not be started (gpu0.lock can't be locked)" in text(blocker)
    assert _kinds().count("JOB_REQUEUED") == 1


AWAY = "The OS account alice can't be looked up now: the service ldap does not answer."


def _fail_to_look_up(job: Job, at: datetime = LATER, problem: str = AWAY) -> Job:
    attempt = jobs_made.place_again(job, at=at)
    outcomes.record_unknown_account(attempt, problem, at)
    job.refresh_from_db()
    return job


def test_a_job_waits_while_the_directory_of_its_account_is_away(alice: User) -> None:
    job = jobs_made.waiting(alice)

    pauses = []
    for _ in range(7):
        at = _fail_to_look_up(job).retry_at
        assert at is not None
        pauses.append((at - LATER).total_seconds())

    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    (blocker,) = durations.load(LATER)[job.pk]
    assert blocker.code == "Backoff"
    assert "the service ldap does not answer" in text(blocker)
    assert _kinds().count("JOB_REQUEUED") == 1
    assert (job.state, job.failures, job.attempts.filter(ended_at=None).count()) == ("queued", 0, 0)


def test_a_job_fails_when_the_directory_was_away_for_too_long(alice: User) -> None:
    job = jobs_made.waiting(alice)
    _fail_to_look_up(job)
    assert _fail_to_look_up(job, LATER + timedelta(hours=5.9)).state == "queued"

    other_service = AWAY.replace("ldap", "sss")
    ended = _fail_to_look_up(job, LATER + timedelta(hours=6), other_service)
    assert (ended.state, ended.outcome) == ("finished", "failed")
    assert ended.problem == f"{other_service} It was tried for 6 h."


def test_a_start_between_two_absences_begins_the_time_anew(alice: User) -> None:
    job = jobs_made.waiting(alice)
    _fail_to_look_up(job)
    _refuse(job)

    assert _fail_to_look_up(job, LATER + timedelta(hours=7)).state == "queued"


def test_a_job_that_is_cancelled_while_its_account_is_unknown_is_cancelled(alice: User) -> None:
    job = jobs_made.waiting(alice)
    attempt = jobs_made.place_again(job)
    assert job_changes.request_cancel(job.pk, "alice", NOW)
    attempt = _attempt(job)

    outcomes.record_unknown_account(attempt, AWAY, LATER)
    job.refresh_from_db()
    assert (job.state, job.outcome) == ("finished", "cancelled")


def test_each_new_reason_of_a_refusal_is_told_once(alice: User) -> None:
    job = jobs_made.waiting(alice)

    for why in ("one", "one", "two", "two"):
        _refuse(job, why)

    assert _kinds().count("JOB_REQUEUED") == 2
