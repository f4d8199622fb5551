from __future__ import annotations

import pynvml
import pytest

from monitor.facts.readings import UseSource
from tests.monitor.driver_samples import between, pulsed, steady
from tests.monitor.fake_nvml import GIB, FakeGpu, FakeInstance, FakeNvml
from tests.monitor.traced import Watched

MINUTES = 60.0
UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
MISSING = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
INFO, LEGACY = "nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"
V2 = "nvmlDeviceGetAccountingStats_v2"


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu("GPU-a", used=0)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu) -> Watched:
    return Watched(FakeNvml(gpu).install(monkeypatch))


def two_and_a_holder(watched: Watched, gpu: FakeGpu) -> None:
    """Alice works 30 %, Bob 60 % of each 1.7 s, never at once; Carol holds 40 GB and is idle."""
    gpu.compute = [(101, 10 * GIB), (102, 20 * GIB), (103, 40 * GIB)]
    gpu.work = {101: pulsed(1.7, 0.0, 0.3), 102: pulsed(1.7, 0.35, 0.95)}
    for pid, user in ((101, "alice"), (102, "bob"), (103, "carol")):
        watched.runs(pid, user)


@pytest.mark.parametrize("answers", ["mean", "ring"])
@pytest.mark.parametrize("call", [INFO, LEGACY])
def test_two_users_and_an_idle_holder_get_their_own_use(
    watched: Watched, gpu: FakeGpu, answers: str, call: str
) -> None:
    two_and_a_holder(watched, gpu)
    gpu.answers = answers
    if call == LEGACY:
        gpu.errors = {INFO: MISSING}
    watched.run(1)
    watched.run(10 * MINUTES)
    alice, bob, carol = (watched.of(name) for name in ("alice", "bob", "carol"))
    assert alice.total.sm_s == pytest.approx(180, rel=0.05)
    assert bob.total.sm_s == pytest.approx(360, rel=0.05)
    assert carol.total.sm_s == 0
    assert carol.total.held_s == carol.total.known_s == pytest.approx(600, abs=2)
    assert carol.total.memory_byte_s == 40 * GIB * carol.total.held_s
    assert carol.total.peak_memory_bytes == 40 * GIB
    for use in (alice, bob):
        assert use.total.known_s == use.total.held_s
    expected = UseSource.PROCESSES_INFO if call == INFO else UseSource.PROCESS_UTILIZATION
    assert {alice.source, bob.source, carol.source} == {expected}


def test_accounting_is_exact(watched: Watched, gpu: FakeGpu) -> None:
    two_and_a_holder(watched, gpu)
    gpu.accounting, gpu.work[103] = True, steady(0)
    gpu.lives = dict.fromkeys((101, 102, 103), (watched.t - 60, None))
    watched.run(1)
    watched.run(10 * MINUTES)
    assert watched.of("alice").total.sm_s == pytest.approx(180, rel=0.01)
    assert watched.of("bob").total.sm_s == pytest.approx(360, rel=0.01)
    assert watched.of("carol").total.sm_s == 0
    assert watched.of("alice").source is UseSource.ACCOUNTING
    assert watched.nvml.calls.count(INFO) <= 1


def test_several_users_together_get_at_most_the_use_of_the_gpu(
    watched: Watched, gpu: FakeGpu
) -> None:
    gpu.compute = [(101, GIB), (102, GIB)]
    gpu.work = {101: steady(0.8), 102: steady(0.8)}
    watched.runs(101, "alice")
    watched.runs(102, "bob")
    watched.run(1)
    watched.run(MINUTES)
    assert watched.of("alice").total.sm_s == pytest.approx(30, rel=0.05)
    assert watched.of("alice").total.sm_s + watched.of("bob").total.sm_s <= 60


def test_a_process_shorter_than_a_sweep_is_reported_by_accounting_only(
    watched: Watched, gpu: FakeGpu
) -> None:
    gpu.accounting = True
    watched.run(4)
    gpu.work = {777: between(watched.t + 0.2, watched.t + 1.4, steady(1.0))}
    gpu.lives = {777: (watched.t + 0.2, watched.t + 1.4)}
    watched.run(6)
    (use,) = watched.done
    assert (use.pid, use.user, use.source) == (777, None, UseSource.ACCOUNTING)
    assert use.total.sm_s == pytest.approx(1.2, rel=0.15)
    assert use.total.held_s == pytest.approx(1.2, rel=0.15)
    assert use.start_ticks < 0
    assert use.ended_at is not None


def test_without_accounting_it_is_counted_as_dropped_without_a_user(
    watched: Watched, gpu: FakeGpu
) -> None:
    gpu.compute, gpu.util = [(103, 40 * GIB)], 0
    watched.runs(103, "carol")
    watched.run(4)
    gpu.work = {777: between(watched.t + 0.2, watched.t + 1.4, steady(1.0))}
    watched.run(10)
    assert watched.dropped > 0
    assert watched.of("carol").total.sm_s == 0
    assert len(watched.uses.open) == 1


@pytest.mark.parametrize("answers", ["mean", "ring"])
def test_a_process_on_a_gpu_that_was_quiet_for_long_is_known_soon(
    watched: Watched, gpu: FakeGpu, answers: str
) -> None:
    gpu.answers, gpu.util = answers, 0
    gpu.compute, gpu.work = [(50, GIB)], {50: between(0, watched.t + 10, steady(0.5))}
    watched.runs(50, "dana")
    watched.run(15)
    gpu.compute = []
    watched.run(10 * MINUTES)
    gpu.compute = [(101, GIB), (103, GIB)]
    gpu.work[101] = between(watched.t, watched.t + 1e9, steady(0.5))
    watched.runs(101, "alice", age_s=0)
    watched.runs(103, "carol", age_s=0)
    watched.run(MINUTES)
    alice, carol = watched.of("alice").total, watched.of("carol").total
    # A mean since ten minutes ago says nothing at first: that is unknown, not idle.
    assert 55 <= alice.known_s <= 60
    assert alice.sm_s == pytest.approx(0.5 * alice.known_s, rel=0.05)
    assert carol.sm_s == 0


def test_the_last_work_of_a_process_that_ended_is_its_own(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute = [(101, GIB), (103, GIB)]
    watched.runs(101, "alice")
    watched.runs(103, "carol")
    gpu.work = {101: between(0, watched.t + 10, steady(0.5))}
    watched.run(9)
    gpu.compute = [(103, GIB)]
    watched.run(4)
    assert watched.of("alice").total.sm_s == pytest.approx(4.5, abs=0.3)
    assert watched.of("alice").ended_at is not None
    assert watched.of("carol").total.sm_s == 0


def test_a_reused_pid_is_another_process(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute, gpu.work = [(101, GIB)], {101: steady(0.5)}
    watched.runs(101, "alice", start_ticks=1)
    watched.run(21)
    watched.runs(101, "bob", start_ticks=2, age_s=0.5)
    watched.run(20)
    alice, bob = watched.of("alice"), watched.of("bob")
    assert alice.ended_at is not None
    assert alice.total.sm_s == pytest.approx(10, abs=1.1)
    assert bob.total.sm_s == pytest.approx(10, abs=1.1)


def test_counters_that_go_backwards_start_again(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute, gpu.work = [(101, GIB), (103, GIB)], {101: steady(0.5), 103: steady(0)}
    gpu.accounting = True
    gpu.lives = dict.fromkeys((101, 103), (watched.t - 60, None))
    gpu.energy_mj = 10**9
    watched.runs(101, "alice")
    watched.runs(103, "carol")
    watched.run(21)
    before = watched.of("alice").total.sm_s, watched.of("alice").total.known_s
    gpu.lives = dict.fromkeys((101, 103), (watched.t, None))
    gpu.energy_mj = 0
    watched.run(20)
    alice = watched.of("alice").total
    assert alice.known_s - before[1] >= 17
    assert alice.sm_s - before[0] == pytest.approx(0.5 * (alice.known_s - before[1]), rel=0.05)
    assert watched.of("carol").total.sm_s == 0
    assert (alice.joules or 0) >= 0


def test_a_driver_s_clock_that_is_set_back_is_followed_again(
    watched: Watched, gpu: FakeGpu
) -> None:
    gpu.compute, gpu.work = [(101, GIB), (103, GIB)], {101: steady(0.5)}
    watched.runs(101, "alice")
    watched.runs(103, "carol")
    watched.run(21)
    watched.nvml.now_us -= 3_000_000_000
    watched.run(20)
    alice = watched.of("alice").total
    assert alice.sm_s == pytest.approx(0.5 * alice.known_s, rel=0.05)
    assert 32 <= alice.known_s < alice.held_s


def test_values_above_100_are_cut_and_nonsense_is_unknown(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute, gpu.util = [(101, GIB), (102, GIB)], 100
    watched.runs(101, "alice")
    watched.runs(102, "bob")
    gpu.work = {102: steady(0.0)}
    gpu.junk = [(101, watched.nvml.now_us, 20)]
    watched.run(1)
    for _ in range(10):
        watched.passes(1)
        t = watched.nvml.now_us
        gpu.junk = [(101, t, 2_147_483_632), (102, t, 130), (9999, t, 40)]
        gpu.work = {101: steady(1.0)}
        gpu.answers = "none"
        watched.sweep()
    alice, bob = watched.of("alice").total, watched.of("bob").total
    assert (alice.sm_s, alice.known_s) == (0, 0)
    assert 0 < bob.sm_s <= bob.known_s
    assert watched.dropped >= 8


def test_a_busy_gpu_without_listed_processes_makes_no_process_idle(
    watched: Watched, gpu: FakeGpu
) -> None:
    two_and_a_holder(watched, gpu)
    gpu.answers = "empty"
    gpu.errors = {INFO: MISSING}
    watched.run(1)
    watched.run(MINUTES)
    for name in ("alice", "bob", "carol"):
        use = watched.of(name)
        assert (use.total.known_s, use.total.sm_s) == (0, 0)
        assert use.total.held_s == pytest.approx(60, abs=2)
        assert use.source is UseSource.UNKNOWN
    assert all(process.sm_pct is None for process in watched.last.processes)


def test_alone_on_such_a_gpu_it_is_the_device_s_use(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute, gpu.work, gpu.answers = [(101, GIB)], {101: steady(0.4)}, "empty"
    watched.runs(101, "alice")
    watched.run(1)
    watched.run(MINUTES)
    alice = watched.of("alice")
    assert alice.total.sm_s == pytest.approx(24, rel=0.05)
    assert alice.source is UseSource.DEVICE


def test_processes_on_a_quiet_gpu_are_known_idle(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute, gpu.util = [(101, GIB), (103, GIB)], 0
    watched.runs(101, "alice")
    watched.runs(103, "carol")
    watched.run(11)
    assert [process.sm_pct for process in watched.last.processes] == [0, 0]
    assert watched.of("carol").total.known_s == watched.of("carol").total.held_s > 0


def test_what_is_not_supported_is_unknown(watched: Watched, gpu: FakeGpu) -> None:
    two_and_a_holder(watched, gpu)
    gpu.errors = dict.fromkeys((INFO, LEGACY, "nvmlDeviceGetUtilizationRates", V2), UNSUPPORTED)
    watched.run(11)
    assert watched.of("carol").total.known_s == 0
    assert [process.sm_pct for process in watched.last.processes] == [None] * 3


def test_unwatched_time_is_unknown_not_idle(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute, gpu.work = [(101, GIB), (103, GIB)], {101: steady(0.5)}
    watched.runs(101, "alice")
    watched.runs(103, "carol")
    watched.run(21)
    before = watched.of("carol").total.known_s
    watched.passes(300)
    watched.sweep()
    carol = watched.of("carol").total
    assert carol.known_s == before
    assert carol.held_s == pytest.approx(before + 300, abs=0.1)
    watched.run(10)
    alice = watched.of("alice").total
    assert alice.sm_s == pytest.approx(0.5 * alice.known_s, rel=0.06)


def test_a_gpu_that_was_lost_for_a_while_makes_no_idle_time(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute, gpu.work = [(101, GIB), (103, GIB)], {101: steady(0.5)}
    watched.runs(101, "alice")
    watched.runs(103, "carol")
    watched.run(21)
    known = watched.of("carol").total.known_s
    gpu.fails(pynvml.NVML_ERROR_GPU_IS_LOST)
    watched.run(20)
    gpu.works()
    watched.probe._reinit_at = 0
    watched.run(4)
    carol = watched.of("carol")
    assert carol.ended_at is None
    assert known <= carol.total.known_s <= known + 4


def test_energy_above_idle_goes_to_working_processes(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute, gpu.util = [(101, GIB), (102, GIB), (103, GIB)], 0
    for pid, user in ((101, "alice"), (102, "bob"), (103, "carol")):
        watched.runs(pid, user)
    gpu.power_mw = 100_000
    for _ in range(10):
        watched.run(1)
        gpu.energy_mj += 100_000
    gpu.work = {101: steady(0.3), 102: steady(0.6)}
    gpu.power_mw = 640_000
    for _ in range(60):
        gpu.energy_mj += 640_000
        watched.run(1)
    alice, bob, carol = (watched.of(name).total for name in ("alice", "bob", "carol"))
    assert carol.joules == 0
    assert alice.joules == pytest.approx(60 * 540 / 3, rel=0.1)
    assert bob.joules == pytest.approx(60 * 540 * 2 / 3, rel=0.1)


def test_without_an_energy_counter_it_is_power_times_time(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute, gpu.work = [(101, GIB), (103, GIB)], {101: steady(1.0)}
    gpu.errors = {"nvmlDeviceGetTotalEnergyConsumption": UNSUPPORTED}
    watched.runs(101, "alice")
    watched.runs(103, "carol")
    watched.run(21)
    assert watched.of("alice").total.joules == pytest.approx(350.5 * 20, rel=0.1)


def test_in_mig_mode_instances_show_memory_and_processes_but_no_use(
    watched: Watched, gpu: FakeGpu
) -> None:
    gpu.instances = [FakeInstance("MIG-1", 3, compute=[(101, 2 * GIB)]), FakeInstance("MIG-2", 5)]
    gpu.errors = {"nvmlDeviceGetUtilizationRates": UNSUPPORTED}
    gpu.compute = [(101, 2 * GIB)]
    watched.runs(101, "alice")
    watched.run(5)
    assert [(i.uuid, i.instance, i.memory_used_bytes) for i in watched.last.instances] == [
        ("MIG-1", 3, 2 * GIB),
        ("MIG-2", 5, 2 * GIB),
    ]
    (process,) = watched.last.processes
    assert (process.instance, process.memory_bytes, process.sm_pct) == (3, 2 * GIB, None)
    assert watched.of("alice").total.known_s == 0


def test_clients_of_mps_are_counted_too(watched: Watched, gpu: FakeGpu) -> None:
    gpu.mps, gpu.compute = [(101, GIB), (102, GIB)], [(50, GIB)]
    gpu.work = {101: steady(0.2), 102: steady(0.4)}
    for pid, user in ((50, "mps"), (101, "alice"), (102, "bob")):
        watched.runs(pid, user)
    watched.run(1)
    watched.run(MINUTES)
    assert watched.of("bob").total.sm_s == pytest.approx(24, rel=0.05)


def test_clients_of_mps_are_not_idle_while_the_driver_names_only_their_server(
    watched: Watched, gpu: FakeGpu
) -> None:
    gpu.mps, gpu.compute = [(101, GIB), (102, GIB)], [(50, GIB)]
    gpu.work = {50: steady(0.6)}
    for pid, user in ((50, "mps"), (101, "alice"), (102, "bob")):
        watched.runs(pid, user)
    watched.run(61)
    for user in ("alice", "bob"):
        total = watched.of(user).total
        assert (total.known_s, total.sm_s) == (0, 0)
        assert total.held_s == pytest.approx(60, abs=2)
    assert watched.of("mps").total.known_s > 55


def test_clients_of_mps_are_known_idle_once_the_driver_names_clients_or_nothing_works(
    watched: Watched, gpu: FakeGpu
) -> None:
    gpu.mps, gpu.util = [(101, GIB), (102, GIB)], 0
    watched.runs(101, "alice")
    watched.runs(102, "bob")
    watched.run(21)
    gpu.work = {101: steady(0.5)}
    watched.run(60)
    bob = watched.of("bob").total
    assert bob.sm_s == 0
    assert bob.known_s == pytest.approx(bob.held_s, abs=4)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_worker_that_the_driver_names_at_each_second_look_is_known_for_half_of_the_time(
    watched: Watched, gpu: FakeGpu, share: float
) -> None:
    gpu.compute = [(101, GIB), (102, GIB)]
    gpu.work = {101: steady(0.03), 102: steady(share - 0.03)}
    watched.runs(101, "alice")
    watched.runs(102, "bob")
    watched.run(1)
    for look in range(30):
        gpu.hidden = {102} if look % 2 else set()
        watched.run(2)
    bob = watched.of("bob").total
    assert bob.known_s == pytest.approx(30, abs=4)
    assert bob.sm_s == pytest.approx(share * bob.known_s, rel=0.1)
    alice = watched.of("alice").total
    assert alice.known_s == alice.held_s


def test_a_pid_in_two_lists_counts_once(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute, gpu.graphics = [(101, 5 * GIB)], [(101, 5 * GIB)]
    gpu.work = {101: steady(0.5)}
    watched.runs(101, "alice")
    watched.run(1)
    watched.run(MINUTES)
    alice = watched.of("alice").total
    assert alice.sm_s == pytest.approx(30, rel=0.05)
    assert alice.memory_byte_s == 5 * GIB * alice.held_s


def test_processes_that_a_driver_leaves_out_on_a_busy_gpu_are_unknown(
    watched: Watched, gpu: FakeGpu
) -> None:
    """Alice works 50 % and Bob 35 %, but the driver names only Bob; the device says 85 %."""
    gpu.compute = [(101, 30 * GIB), (102, GIB)]
    gpu.work, gpu.hidden = {101: steady(0.5), 102: steady(0.35)}, {101}
    watched.runs(101, "alice")
    watched.runs(102, "bob")
    watched.run(61)
    alice, bob = watched.of("alice").total, watched.of("bob").total
    assert alice.held_s == pytest.approx(60, abs=3)
    assert alice.known_s <= 4
    assert bob.known_s == bob.held_s
    assert bob.sm_s == pytest.approx(0.35 * bob.held_s, rel=0.08)


def test_an_idle_process_beside_a_bursting_one_stays_known(watched: Watched, gpu: FakeGpu) -> None:
    gpu.compute = [(101, 30 * GIB), (102, GIB)]
    gpu.work = {102: pulsed(10, 0.0, 0.3)}
    watched.runs(101, "alice")
    watched.runs(102, "bob")
    watched.run(301)
    alice = watched.of("alice").total
    assert alice.sm_s == 0
    assert alice.known_s >= 0.95 * alice.held_s


def test_two_processes_that_change_places_with_equal_memory_are_seen_soon(
    watched: Watched, gpu: FakeGpu
) -> None:
    """Both live on, and the used memory is the same to the byte."""
    watched.moves = 0
    watched.runs(101, "alice")
    watched.runs(102, "bob")
    for _ in range(5):
        for pid in (101, 102):
            gpu.compute, gpu.work = [(pid, 10 * GIB)], {pid: steady(0.5)}
            watched.run(57)
    totals: dict[str, float] = {}
    for use in {id(u): u for u in (*watched.uses.open.values(), *watched.done)}.values():
        totals[use.user or ""] = totals.get(use.user or "", 0.0) + use.total.sm_s
    assert totals["alice"] + totals["bob"] == pytest.approx(285, rel=0.04)
    assert totals["alice"] == pytest.approx(totals["bob"], rel=0.08)


def test_slow_sweeps_do_not_clip_exact_samples_to_one_second_of_the_device(
    watched: Watched, gpu: FakeGpu
) -> None:
    gpu.compute = [(101, GIB), (102, GIB)]
    gpu.work = {101: pulsed(7, 0.0, 0.4), 102: pulsed(11, 0.4, 0.6)}
    watched.runs(101, "alice")
    watched.runs(102, "bob")
    watched.run(5, step_s=5)
    watched.run(600, step_s=5)
    for name, share in (("alice", 0.4), ("bob", 0.2)):
        use = watched.of(name).total
        assert use.sm_s == pytest.approx(share * use.held_s, rel=0.05)
