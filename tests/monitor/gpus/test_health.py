from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.facts.gpus import Ailment, Condition, HealthReading, Xid
from monitor.facts.readings import GpuReading, GpuSweep, Health, Snapshot
from monitor.gpus.policy import health as health_events
from monitor.gpus.policy.health import Checkup, ConditionChange, HealthPolicy, examine
from tests.builders import NOW, claim, gpu, gpu_uuid, process, snapshot

POLICY = HealthPolicy()


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


class Trace:
    """One GPU seen again and again; each look takes what the snapshot before remembered."""

    def __init__(self, policy: HealthPolicy = POLICY) -> None:
        self.policy = policy
        self.last: Snapshot | None = None
        self.notes: list[tuple[str, str]] = []

    def see(
        self, second: float, *, xids: tuple[int, ...] = (), counts: object = None, **reading: object
    ) -> GpuReading:
        seen = gpu(**reading)
        health = () if counts is None else (HealthReading(gpu_uuid=seen.uuid, **counts),)  # type: ignore[arg-type]
        sweep = GpuSweep(
            gpus=(seen,), health=health, xids=tuple(Xid(seen.uuid, code) for code in xids)
        )
        found = examine(sweep, sweep.gpus, self.last, self.policy, at(second))
        self._remember(found, sweep, second)
        return found.gpus[0]

    def _remember(self, found: Checkup, sweep: GpuSweep, second: float) -> None:
        told = health_events.of_checkup(found, self.last, sweep.xids, (), ())
        self.notes += [(note.kind, note.text) for note in told]
        self.last = snapshot(found.gpus, health=found.health, at=at(second))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.notes]


def conditions(trace: Trace, *readings: dict[str, object]) -> list[Condition | None]:
    return [trace.see(i, **reading).condition for i, reading in enumerate(readings)]  # type: ignore[arg-type]


def test_a_quiet_gpu_is_healthy_and_makes_no_event() -> None:
    trace = Trace()
    assert trace.see(0, counts={"clock_reasons": 0x1}).condition is Condition.HEALTHY
    assert trace.notes == []


def test_a_hot_gpu_is_throttled_until_it_is_five_degrees_cooler() -> None:
    trace = Trace()
    heats = [84, 85, 84, 81, 80, 84]
    seen = conditions(trace, *({"temperature_c": float(h)} for h in heats))
    throttled, healthy = Condition.THROTTLED, Condition.HEALTHY
    assert seen == [healthy, throttled, throttled, throttled, healthy, healthy]
    assert trace.kinds == ["GPU_THROTTLED", "GPU_HEALTHY"]
    assert "85 °C" in trace.notes[0][1]


def test_the_measured_heat_is_reported_beside_the_limit() -> None:
    trace = Trace()
    trace.see(0, temperature_c=91.0)
    hotter = trace.see(1, temperature_c=93.0)
    cooling = trace.see(2, temperature_c=83.0)

    assert "Too hot: 91 °C, the limit is 85 °C" in trace.notes[0][1]
    for reading in (hotter, cooling):
        assert "Too hot: 93 °C, the limit is 85 °C" in (reading.condition_reason or "")


@pytest.mark.parametrize("away", [Health.LOST, Health.FAILING])
def test_a_pending_repair_is_reported_once_over_outages_of_the_driver(away: Health) -> None:
    trace = Trace()
    pending = {"remap_pending": True}
    for outage in range(5):
        trace.see(10 * outage, counts=pending)
        trace.see(10 * outage + 5, health=away, problem="The driver is away.")
    trace.see(60, counts=pending)
    assert trace.kinds.count("GPU_REPAIR_PENDING") == 1

    trace.see(70, counts={"remap_pending": False})
    trace.see(80, counts=pending)
    assert trace.kinds.count("GPU_REPAIR_PENDING") == 2


def test_heat_that_is_unknown_ends_nothing_and_begins_nothing() -> None:
    trace = Trace()
    assert trace.see(0, temperature_c=None).condition is Condition.HEALTHY
    trace.see(1, temperature_c=90.0)
    assert trace.see(2, temperature_c=None).condition is Condition.THROTTLED


def test_the_thresholds_are_settings() -> None:
    trace = Trace(HealthPolicy(hot_c=60))
    assert trace.see(0, temperature_c=61.0).condition is Condition.THROTTLED


@given(heats=st.lists(st.none() | st.floats(20, 110), min_size=1, max_size=40))
def test_it_never_flaps_within_the_hysteresis(heats: list[float | None]) -> None:
    trace, was = Trace(), Condition.HEALTHY
    for second, heat in enumerate(heats):
        now = trace.see(second, temperature_c=heat).condition
        if now is not was:
            assert heat is not None
            assert heat >= 85 if now is Condition.THROTTLED else heat <= 80
        was = now or was


@pytest.mark.parametrize("bits", [0x8, 0x20, 0x40, 0x80, 0xE9])
def test_a_slow_down_that_lasts_throttles_it(bits: int) -> None:
    trace = Trace()
    assert trace.see(0, counts={"clock_reasons": bits}).condition is Condition.HEALTHY
    assert trace.see(5, counts={"clock_reasons": bits}).condition is Condition.HEALTHY
    assert trace.see(10, counts={"clock_reasons": bits}).condition is Condition.THROTTLED


@pytest.mark.parametrize("bits", [0x0, 0x1, 0x4, 0x2, 0x10, 0x100, 0x5])
def test_idle_clocks_and_the_power_cap_are_everyday_life(bits: int) -> None:
    trace = Trace()
    seen = [
        trace.see(second, counts={"clock_reasons": bits}).condition for second in range(0, 60, 5)
    ]
    assert set(seen) == {Condition.HEALTHY}


def test_a_slow_down_ends_once_it_has_stayed_away() -> None:
    trace = Trace()
    for second in range(0, 20, 5):
        trace.see(second, counts={"clock_reasons": 0x40})
    assert trace.see(40, counts={"clock_reasons": 0}).condition is Condition.THROTTLED
    assert "heat" in (trace.see(43, counts={"clock_reasons": 0}).condition_reason or "")
    assert trace.see(45, counts={"clock_reasons": 0}).condition is Condition.HEALTHY


def test_a_blip_of_slowness_changes_nothing() -> None:
    trace = Trace()
    for second in range(0, 100, 5):
        bits = 0x40 if second % 10 == 0 else 0
        assert trace.see(second, counts={"clock_reasons": bits}).condition is Condition.HEALTHY


def test_memory_that_could_not_be_corrected_makes_it_failing() -> None:
    trace = Trace()
    seen = trace.see(0, counts={"ecc_uncorrected": 1})
    assert seen.condition is Condition.FAILING
    assert "reset" in (seen.condition_reason or "")
    assert trace.kinds == ["GPU_UNHEALTHY"]


def test_a_row_that_could_not_be_replaced_makes_it_failing() -> None:
    assert Trace().see(0, counts={"remap_failed": True}).condition is Condition.FAILING


def test_a_pending_repair_is_reported_and_work_continues() -> None:
    trace = Trace()
    for second in range(3):
        seen = trace.see(second, counts={"remap_pending": True})
        assert seen.condition is Condition.HEALTHY
    assert trace.kinds == ["GPU_REPAIR_PENDING"]


def test_corrected_errors_are_reported_at_each_power_of_ten() -> None:
    trace = Trace()
    for second, count in enumerate([0, 1, 2, 9, 10, 11, 250]):
        trace.see(second, counts={"ecc_corrected": count})
    assert trace.kinds == ["GPU_ECC_CORRECTED"] * 3


@pytest.mark.parametrize("code", [48, 62, 64, 74, 79, 95, 119, 120])
def test_an_xid_of_the_hardware_holds_it_back_for_an_hour(code: int) -> None:
    trace = Trace()
    seen = trace.see(0, xids=(code,))
    assert seen.condition is Condition.FAILING
    assert f"XID {code}" in (seen.condition_reason or "")
    assert trace.see(3599).condition is Condition.FAILING
    assert trace.see(3600).condition is Condition.HEALTHY
    assert trace.kinds == ["GPU_UNHEALTHY", "GPU_XID", "GPU_HEALTHY"]


def test_a_second_xid_prolongs_it() -> None:
    trace = Trace()
    trace.see(0, xids=(74,))
    trace.see(1800, xids=(74,))
    assert trace.see(3600).condition is Condition.FAILING


@pytest.mark.parametrize("code", [13, 31, 43, 63, 92, 94])
def test_an_xid_of_a_program_leaves_it_healthy(code: int) -> None:
    trace = Trace()
    assert trace.see(0, xids=(code,)).condition is Condition.HEALTHY
    assert trace.kinds == ["GPU_XID"]


def test_an_xid_is_of_one_gpu_only() -> None:
    sweep = GpuSweep(gpus=(gpu(0), gpu(1)), xids=(Xid(gpu_uuid(1), 79),))
    found = examine(sweep, sweep.gpus, None, POLICY, NOW)
    assert [g.condition for g in found.gpus] == [Condition.HEALTHY, Condition.FAILING]


def test_a_gpu_that_was_lost_and_came_back_has_been_reset() -> None:
    trace = Trace()
    trace.see(0, xids=(79,))
    assert trace.see(1, health=Health.LOST, problem="Gone.").condition is Condition.LOST
    assert trace.see(2).condition is Condition.HEALTHY


def test_the_reason_of_the_driver_counts_and_is_reported_by_the_state_only() -> None:
    trace = Trace()
    seen = trace.see(0, health=Health.FAILING, problem="It must be reset.")
    assert (seen.condition, seen.condition_reason) == (Condition.FAILING, "It must be reset.")
    trace.see(1)
    assert trace.notes == []


def test_since_when_is_kept_while_the_condition_stays() -> None:
    trace = Trace()
    trace.see(0)
    trace.see(5, temperature_c=90.0)
    assert trace.see(9, temperature_c=91.0).condition_since == at(5)


def spinning(trace: Trace, second: float, **changes: object) -> GpuReading:
    facts = {"utilization_pct": 100.0, "power_w": 110.0, "power_limit_w": 700.0} | changes
    return trace.see(second, **facts)  # type: ignore[arg-type]


def test_wholly_busy_on_idle_power_for_ten_minutes_seems_to_spin() -> None:
    trace = Trace()
    for second in range(0, 600, 5):
        spinning(trace, second)
    assert trace.notes == []
    assert spinning(trace, 600).condition is Condition.HEALTHY
    assert trace.kinds == ["GPU_SPINNING"]


@pytest.mark.parametrize(
    "broken",
    [{"utilization_pct": 60.0}, {"power_w": 400.0}, {"power_w": None}, {"utilization_pct": None}],
)
def test_one_look_at_honest_work_or_the_unknown_clears_the_suspicion(
    broken: dict[str, object],
) -> None:
    trace = Trace()
    for second in range(0, 900, 5):
        spinning(trace, second, **(broken if second == 450 else {}))
    assert trace.notes == []


def test_power_above_the_limit_is_reported_once_it_lasts() -> None:
    trace = Trace()
    for second in range(40):
        trace.see(second, power_w=800.0, power_limit_w=700.0)
    assert trace.kinds == ["GPU_OVER_POWER"]


def test_an_xid_of_a_program_is_reported_to_the_owners_of_the_jobs_on_the_gpu() -> None:
    notes = list(
        health_events.of_xids(
            [Xid(gpu_uuid(0), 31)],
            [gpu(0)],
            [process(on=0, user="bob"), process(pid=7, on=0, job_ref="12"), process(pid=8, on=1)],
            [claim("12", on=0, owner="alice"), claim("13", on=1, owner="dana")],
        )
    )
    assert [(n.owner, n.job_ref) for n in notes] == [("alice", "12"), ("bob", "")]
    assert "page fault" in notes[0].text
    assert "Job 12 of alice" in notes[0].text


def test_a_hardware_xid_is_reported_to_all_users() -> None:
    (note,) = health_events.of_xids(
        [Xid(gpu_uuid(0), 79)], [gpu(0)], [], [claim("12", on=0, owner="alice")]
    )
    assert (note.owner, note.severity) == ("", "error")


def test_many_gpus_that_grow_hot_at_once_make_one_event() -> None:
    gpus = tuple(gpu(i, temperature_c=95.0) for i in range(8))
    found = examine(GpuSweep(gpus=gpus), gpus, None, POLICY, NOW)
    (note,) = health_events.of_checkup(found, None, (), (), ())
    assert note.text.startswith("8 GPUs at once")


@pytest.mark.parametrize(
    ("code", "title"),
    [("HOT", "Hot"), ("XID_79", "XID 79"), ("ECC_UNCORRECTED", "ECC uncorrected")],
)
def test_an_ailment_has_a_title_in_words(code: str, title: str) -> None:
    assert Ailment(code, Condition.FAILING, "").title == title


def test_a_change_of_condition_carries_its_figures_for_the_log() -> None:
    hot = gpu(condition=Condition.THROTTLED, temperature_c=91, utilization_pct=97.0)

    notes = list(health_events.of_conditions([ConditionChange(hot, None)], 85.0))

    assert notes[0].figures == {"gpu_util": 97.0, "temperature": 91, "threshold": 85.0}


def test_health_monitoring_can_be_switched_off() -> None:
    trace = Trace(HealthPolicy(enabled=False))

    assert trace.see(0, temperature_c=99).condition is Condition.HEALTHY


def test_calls_that_keep_failing_are_reported_once_and_once_when_that_is_over() -> None:
    trace, call = Trace(), "nvmlDeviceGetPowerUsage: Unknown Error"
    for second in range(0, 200, 10):
        assert trace.see(second, failed_calls=(call,)).condition is Condition.HEALTHY
    assert trace.kinds == ["GPU_CALLS_FAILING"]
    assert call in trace.notes[0][1]

    trace.see(200, health=Health.FAILING, problem="it does not answer")
    for second in range(210, 300, 10):
        trace.see(second)
    assert trace.kinds == ["GPU_CALLS_FAILING", "GPU_CALLS_ANSWERED"]


def test_a_call_that_fails_now_and_then_is_not_reported() -> None:
    trace = Trace()
    for second in range(0, 300, 10):
        trace.see(second, failed_calls=("nvmlX: Timeout",) if second % 40 else None)
    assert trace.notes == []
