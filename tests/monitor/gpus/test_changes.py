from __future__ import annotations

from datetime import timedelta

from monitor.facts.gpus import GpuState
from monitor.facts.readings import GpuReading
from monitor.gpus.policy import changes as gpu_changes
from monitor.gpus.policy.states import StateChange
from tests.builders import NOW, gpu, snapshot

OLD = snapshot(1)


def kinds(change: StateChange | None = None, **new: object) -> list[str]:
    changes = [change] if change else []
    return [note.kind for note in gpu_changes.of_sweep(OLD, snapshot(1, **new), changes)]


def change(old: GpuState | None, new: GpuState, lasted: float = 1) -> StateChange:
    before = NOW - timedelta(seconds=lasted)
    was = None if old is None else gpu(state=old, state_since=before)
    return StateChange(gpu(state=new, state_since=NOW), was)


def test_it_tells_when_a_gpu_is_lost_and_when_it_is_back() -> None:
    assert kinds(change(GpuState.IDLE, GpuState.LOST)) == ["GPU_LOST"]
    assert kinds(change(GpuState.LOST, GpuState.IDLE)) == ["GPU_FOUND"]


def test_it_tells_when_a_gpu_fails_and_when_it_works_again() -> None:
    assert kinds(change(GpuState.IDLE, GpuState.FAILING)) == ["GPU_STATE_CHANGED"]
    assert kinds(change(GpuState.FAILING, GpuState.IDLE)) == ["GPU_STATE_CHANGED"]


def test_it_tells_of_a_new_gpu_but_not_of_all_at_the_first_start() -> None:
    new = change(None, GpuState.IDLE)
    assert kinds(new) == ["GPU_FOUND"]
    assert gpu_changes.of_sweep(None, snapshot(1), [new]) == []


def test_it_tells_busy_and_idle_only_after_something_that_lasted() -> None:
    assert kinds(change(GpuState.IDLE, GpuState.EXTERNAL, lasted=20)) == []
    assert kinds(change(GpuState.IDLE, GpuState.EXTERNAL, lasted=400)) == ["GPU_STATE_CHANGED"]


def test_a_fault_of_the_whole_driver_is_told_once_not_per_gpu() -> None:
    failing = change(GpuState.IDLE, GpuState.FAILING)
    assert kinds(failing, problem="gone", failures=1) == ["NVML_UNAVAILABLE"]
    old = snapshot(1, problem="gone", failures=1)
    assert gpu_changes.of_sweep(old, snapshot(1, problem="gone", failures=2), []) == []
    again = gpu_changes.of_sweep(old, snapshot(1), [change(GpuState.FAILING, GpuState.IDLE)])
    assert [note.kind for note in again] == ["NVML_AVAILABLE"]


def test_it_tells_once_that_monitoring_is_off() -> None:
    old = snapshot(1, problem="gone", failures=10)
    told = gpu_changes.of_sweep(old, snapshot(1, problem="gone", failures=11), [])
    assert [note.kind for note in told] == ["NVML_MONITORING_OFF"]
    old = snapshot(1, problem="gone", failures=11)
    assert gpu_changes.of_sweep(old, snapshot(1, problem="gone", failures=12), []) == []


def test_sweeps_go_slow_after_more_than_ten_failures() -> None:
    just_now = NOW - timedelta(seconds=1)
    assert gpu_changes.may_sweep(10, just_now, NOW)
    assert not gpu_changes.may_sweep(11, just_now, NOW)
    assert gpu_changes.may_sweep(11, NOW - timedelta(seconds=61), NOW)
    assert gpu_changes.may_sweep(11, None, NOW)


def test_it_names_the_gpu_and_the_reason() -> None:
    lost = GpuReading(uuid="GPU-1", index=3, name="H100", state=GpuState.LOST, problem="Gone.")
    (note,) = gpu_changes.of_sweep(OLD, snapshot(1), [StateChange(lost, gpu())])
    assert (note.text, note.severity, note.gpu_uuid) == (
        "GPU 3 (H100) is lost. Gone.",
        "error",
        "GPU-1",
    )


def test_the_same_change_of_many_gpus_is_one_event() -> None:
    lost = [
        StateChange(gpu(i, state=GpuState.LOST, problem="Gone."), gpu(i, state=GpuState.IDLE))
        for i in range(16)
    ]
    assert len(gpu_changes.of_sweep(OLD, snapshot(16), lost[:4])) == 4
    (note,) = gpu_changes.of_sweep(OLD, snapshot(16), lost)
    assert (note.kind, note.gpu_uuid) == ("GPU_LOST", "")
    assert note.text.startswith("16 GPUs at once, such as: GPU 0")
