"""One broken item changes nothing for the others: the executor, the planner's inputs, its plan."""

from __future__ import annotations

import ctypes
import fcntl
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Claim, GpuClosure
from scheduler.dispatch.steps import dispatcher
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.execution.steps import gpu_closures, outcomes
from scheduler.execution.steps.executor import Executor
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.facts.plans import Plan, PlanPolicy
from scheduler.jobs.rows import changes as job_queue
from scheduler.jobs.rows import transitions
from scheduler.models import Attempt, Job, TimeWindow
from scheduler.runner import attempt_files, files
from scheduler.runner.attempt_files import own_claim
from scheduler.runner.spec import LAST_S, Result
from tests import jobs_made
from tests.builders import NOW, claim, gpu, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
GOOD = {"ended_at": 1.0, "exit_code": 0}
BROKEN_RESULTS: list[dict[str, Any]] = [
    {},
    {"ended_at": None},
    {"ended_at": "yesterday"},
    {"ended_at": 1e300},
    {"ended_at": float("nan")},
    {"ended_at": -1e300},
    {"ended_at": 1.0, "exit_code": 10**30},
    {"ended_at": 1.0, "exit_code": "zero"},
    {"ended_at": 1.0, "log_bytes": 2**64},
    {"ended_at": 1.0, "cpu_s": [1]},
    {"ended_at": 1.0, "problem": {"a": 1}},
    {"ended_at": 1.0, "problem": "\ud800"},
    {"ended_at": 1.0, "problem": "a\0b"},
    {"ended_at": 1.0, "signal": 99999},
]


@pytest.fixture
def executor(data: Path) -> Executor:
    specs = SpecWriter(data=data, run_as="service", grace_s=1.0, wake_folder=data / "run")
    return Executor(transaction.atomic, "gpubox", specs)


@pytest.fixture
def three(alice: User, data: Path) -> list[tuple[Job, Path]]:
    """Running jobs whose runner is this process."""
    return [_run_by_me(alice, data) for _ in range(3)]


def _run_by_me(owner: User, data: Path) -> tuple[Job, Path]:
    job = jobs_made.running(owner)
    nonce = job.attempts.get().nonce
    runner = own_claim(nonce, runner=True)
    Attempt.objects.filter(job=job).update(
        runner_pid=runner.pid, runner_start_ticks=runner.start_ticks, boot_id=runner.boot_id
    )
    (data / "jobs").mkdir(exist_ok=True)
    folder = files.attempt_folder(data, job.pk, 1)
    files.make_folder(folder)
    files.write_json(folder / files.CLAIMED, runner.to_json())
    return job, folder


def _end(job: Job, folder: Path, body: dict[str, Any]) -> None:
    text = json.dumps({"nonce": job.attempts.get().nonce} | body)
    (folder / files.RESULT).write_text(text)


def _states(jobs: list[tuple[Job, Path]]) -> list[str]:
    return [Job.objects.get(pk=job.pk).state for job, _ in jobs]


def _expect_that_only_this_one_waits(broken: int, states: list[str]) -> None:
    assert states.pop(broken) == "running"
    assert set(states) == {"finished"}


@pytest.mark.parametrize("body", BROKEN_RESULTS, ids=str)
def test_a_malformed_result_counts_as_none_and_the_other_jobs_end(
    executor: Executor, three: list[tuple[Job, Path]], body: dict[str, Any]
) -> None:
    for number, (job, folder) in enumerate(three):
        _end(job, folder, body if number == 0 else GOOD)

    executor.step(NOW)

    _expect_that_only_this_one_waits(0, _states(three))


def test_a_job_whose_result_stays_malformed_is_lost_when_its_runner_has_ended(
    executor: Executor, three: list[tuple[Job, Path]]
) -> None:
    job, folder = three[0]
    _end(job, folder, {"ended_at": 1e300})
    claimed = files.read_json(folder / files.CLAIMED) or {}
    (folder / files.CLAIMED).write_text(json.dumps(claimed | {"start_ticks": 1}))
    Attempt.objects.filter(job=job).update(runner_start_ticks=1)
    started = {
        "nonce": claimed["nonce"], "account": "x", "boot_id": claimed["boot_id"],
        "runner_pid": 1, "runner_start_ticks": 1, "pid": 2, "start_ticks": 2, "started_at": 1.0,
    }  # fmt: skip
    files.write_json(folder / files.STARTED, started)

    executor.step(NOW)

    assert Job.objects.get(pk=job.pk).outcome == "lost"


@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("place", ["look", "row"])
def test_a_job_that_fails_in_any_stage_keeps_no_other_from_ending(
    executor: Executor,
    three: list[tuple[Job, Path]],
    monkeypatch: pytest.MonkeyPatch,
    broken: int,
    place: str,
) -> None:
    for job, folder in three:
        _end(job, folder, GOOD)
    victim = three[broken][0].attempts.get()
    look, end = attempt_files.read_attempt, outcomes.record_end

    def odd_look(folder: Path, nonce: str) -> Any:
        if nonce == victim.nonce:
            raise RuntimeError("an odd folder")
        return look(folder, nonce)

    def odd_end(attempt: Attempt, *args: Any, **named: Any) -> None:
        end(attempt, *args, **named)
        if attempt.pk == victim.pk:
            raise OverflowError("an odd figure")

    if place == "look":
        monkeypatch.setattr(attempt_files, "read_attempt", odd_look)
    else:
        monkeypatch.setattr(outcomes, "record_end", odd_end)

    for second in range(3):
        executor.step(NOW + timedelta(seconds=second))
    _expect_that_only_this_one_waits(broken, _states(three))

    monkeypatch.undo()
    executor.step(NOW + timedelta(seconds=30))
    assert set(_states(three)) == {"finished"}


def test_a_pipe_in_place_of_a_result_or_log_does_not_block_the_executor(
    executor: Executor, three: list[tuple[Job, Path]]
) -> None:
    os.mkfifo(three[0][1] / files.RESULT)
    os.mkfifo(three[1][1] / files.LOG)
    _end(*three[1], GOOD | {"exit_code": 1})
    _end(*three[2], GOOD)

    executor.step(NOW)

    _expect_that_only_this_one_waits(0, _states(three))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)


@given(st.dictionaries(st.sampled_from(sorted(Result.__dataclass_fields__)), JSON))
@example({"nonce": "n", "ended_at": LAST_S})
def test_a_result_is_either_refused_or_has_storable_values(body: dict[str, Any]) -> None:
    result = Result.checked(body)

    if result is not None:
        datetime.fromtimestamp(result.ended_at, UTC)
        assert result.exit_code is None or 0 <= result.exit_code <= 255
        assert all(
            value is None or 0 <= value < 2**63
            for value in (result.cpu_s, result.peak_memory_bytes, result.log_bytes, result.signal)
        )
        (result.problem or "").encode()


# The planner's inputs and its plan


def _dispatcher() -> Dispatcher:
    return Dispatcher(transaction.atomic, "gpubox", PlanPolicy(cpu_jobs=2))


def _submit(owner: User, count: int = 3) -> list[Job]:
    request = Requirement(gpus=1, exclusive=True)
    return [
        job_queue.submit(NewJob(command="true", requirement=request), owner, NOW)
        for _ in range(count)
    ]


def _unplaced(jobs: list[Job]) -> list[int]:
    """Place the jobs on free GPUs; the numbers of those that stay behind."""
    monitor_store.record(snapshot(4, at=NOW))
    placed = {attempt.job_id for attempt in _dispatcher().step(NOW)}
    return [number for number, job in enumerate(jobs) if job.pk not in placed]


def _store_broken(job: Job, **columns: Any) -> None:
    """Store numbers that cannot be read. PostgreSQL refuses them."""
    if connection.vendor == "postgresql":
        pytest.skip("PostgreSQL checks the range of the column")
    Job.objects.filter(pk=job.pk).update(**columns)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("columns", [{"time_limit_s": 10**15}, {"estimate_s": 10**15}], ids=str)
def test_a_waiting_job_whose_row_is_broken_keeps_no_other_from_starting(
    alice: User, number: int, columns: dict[str, Any]
) -> None:
    jobs = _submit(alice)
    _store_broken(jobs[number], **columns)

    assert _unplaced(jobs) == [number]

    jobs[number].refresh_from_db()
    assert [blocker["code"] for blocker in jobs[number].blockers] == ["JobUnclear"]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_job_that_makes_planning_fail_keeps_no_other_from_starting(
    alice: User, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    jobs, real = _submit(alice), dispatcher.plan

    def odd(queue: Any, *rest: Any) -> Plan:
        if any(job.id == jobs[number].pk for job in queue):
            raise ZeroDivisionError
        return real(queue, *rest)

    monkeypatch.setattr(dispatcher, "plan", odd)
    assert _unplaced(jobs) == [number]


def test_a_job_that_made_planning_fail_is_placed_when_it_no_longer_does(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = _submit(alice, 1)
    monitor_store.record(snapshot(1, at=NOW))
    monkeypatch.setattr(dispatcher, "plan", lambda queue, *rest: 1 / len(queue) / 0 or Plan())
    with pytest.raises(ZeroDivisionError):
        _dispatcher().step(NOW)
    monkeypatch.undo()

    assert [a.job_id for a in _dispatcher().step(NOW + timedelta(seconds=2))] == [job.pk]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_placement_that_cannot_be_written_keeps_no_other_from_starting(
    alice: User, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    jobs, real = _submit(alice), transitions.place

    def odd(placement: Any, *rest: Any) -> Any:
        made = real(placement, *rest)
        if placement.job_id == jobs[number].pk:
            raise OverflowError("an odd figure")
        return made

    monkeypatch.setattr(transitions, "place", odd)
    assert _unplaced(jobs) == [number]
    jobs[number].refresh_from_db()
    assert jobs[number].state == "queued"


def test_a_placed_job_whose_row_is_broken_keeps_its_place(alice: User) -> None:
    jobs = _submit(alice, 1)
    monitor_store.record(snapshot(2, at=NOW))
    _dispatcher().step(NOW)
    _store_broken(jobs[0], time_limit_s=10**15)

    new = _submit(alice, 2)

    assert len(_dispatcher().step(NOW)) == 1
    assert {Job.objects.get(pk=job.pk).state for job in new} == {"starting", "queued"}


def test_begin_times_that_no_calendar_shows_keep_only_their_own_job_waiting(alice: User) -> None:
    jobs = _submit(alice)
    Job.objects.filter(pk=jobs[1].pk).update(begin_at=datetime(9999, 12, 31, 23, 59, tzinfo=UTC))

    assert _unplaced(jobs) == [1]


def test_stored_reasons_that_are_malformed_are_replaced(alice: User) -> None:
    (job,) = _submit(alice, 1)
    Job.objects.filter(pk=job.pk).update(blockers={"code": 1})

    assert dispatcher.StoredReasons.load(NOW).news({job.pk: ()}, NOW) == []
    assert _dispatcher().step(NOW) == []
    job.refresh_from_db()
    assert job.blockers[0]["code"] == "NoReading"


def test_a_window_that_cannot_be_read_keeps_no_job_waiting(alice: User) -> None:
    jobs = _submit(alice)
    TimeWindow.objects.create(
        user=alice, days=[0], start="09:00", end="10:00", zone="Atlantis/Capital", state="approved",
        asked_by="alice", asked_at=NOW,
    )  # fmt: skip
    monitor_store.record(snapshot(4, at=NOW))

    assert len(_dispatcher().step(NOW)) == len(jobs)


def test_a_gpu_whose_state_cannot_be_found_out_is_closed_and_the_others_are_open(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(_host: str, seen: Any, _now: datetime) -> dict[str, Any]:
        assert all(reading.index != 2 for reading in seen.gpus)
        return {}

    monkeypatch.setattr(gpu_closures, "SOURCES", (odd, *gpu_closures.SOURCES))
    monitor_store.record(snapshot([gpu(0), gpu(1), gpu(2)], at=NOW))
    _submit(alice)

    placed = _dispatcher().step(NOW)

    used = {uuid for attempt in placed for uuid in attempt.gpu_uuids}
    assert used == {gpu(0).uuid, gpu(1).uuid}
    closures = gpu_closures.gpu_closures("gpubox", snapshot(3), NOW)
    assert {uuid: why[0].code for uuid, why in closures.items()} == {gpu(2).uuid: "GpuUnclear"}


def test_a_gpu_with_a_closure_of_an_unknown_kind_is_closed_and_the_others_are_open(
    alice: User,
) -> None:
    GpuClosure.objects.create(host="gpubox", gpu_uuid=gpu(1).uuid, kind="odd", from_at=NOW)
    monitor_store.record(snapshot(3, at=NOW))
    _submit(alice)

    placed = _dispatcher().step(NOW)

    assert {uuid for attempt in placed for uuid in attempt.gpu_uuids} == {gpu(0).uuid, gpu(2).uuid}


def test_a_claim_of_an_unknown_kind_keeps_only_its_own_gpu(alice: User) -> None:
    monitor_store.open_claim(claim("99", on=1, exclusive=True), "gpubox", NOW)
    Claim.objects.update(kind="odd")
    monitor_store.record(snapshot(3, at=NOW))
    _submit(alice)

    placed = _dispatcher().step(NOW)

    assert {uuid for attempt in placed for uuid in attempt.gpu_uuids} == {gpu(0).uuid, gpu(2).uuid}


def _hold_lock(path: str, ready: Any) -> None:
    ctypes.CDLL(None).prctl(15, b"\xff\xfe-train", 0, 0, 0)
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
    ready.set()
    time.sleep(60)


@pytest.fixture
def odd_holder() -> Iterator[Callable[[Path], int]]:
    """Locks a file in a process whose name is not UTF-8; returns its pid."""
    context = multiprocessing.get_context("fork")
    started: list[Any] = []

    def hold(path: Path) -> int:
        ready = context.Event()
        process = context.Process(target=_hold_lock, args=(str(path), ready), daemon=True)
        process.start()
        started.append(process)
        assert ready.wait(30)
        return int(process.pid or 0)

    yield hold
    for process in started:
        os.kill(process.pid, signal.SIGKILL)
        process.join()


@pytest.mark.processes
def test_a_lock_holder_whose_name_is_not_utf_8_closes_its_gpu_alone(
    alice: User, settings: Any, tmp_path: Path, odd_holder: Callable[[Path], int]
) -> None:
    settings.LOCK_FOLDER = tmp_path / "locks"
    settings.LOCK_FOLDER.mkdir()
    lock = settings.LOCK_FOLDER / "gpu0.lock"
    lock.touch(mode=0o644)
    pid = odd_holder(lock)
    monitor_store.record(snapshot(2, at=NOW))
    _submit(alice, 2)

    (attempt,) = _dispatcher().step(NOW)

    assert attempt.gpu_uuids == [gpu(1).uuid]
    (blocker,) = gpu_closures.gpu_closures("gpubox", snapshot(2), NOW)[gpu(0).uuid]
    assert f"(pid {pid})" in (blocker.holder or "")
    (blocker.holder or "").encode()
