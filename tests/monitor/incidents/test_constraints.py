from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monitor.facts.gpus import Condition
from monitor.facts.readings import DiskReading, Pressure
from monitor.incidents.policy.constraints import (
    EFFECTS,
    GIB,
    Constraint,
    ConstraintEffect,
    ConstraintPolicy,
    judge,
    mount_of,
)
from tests.builders import gpu, host, snapshot

POLICY = ConstraintPolicy()
Keys = list[tuple[str, str]]


def opened(open_keys: Keys | None = None, **of_host: object) -> Keys:
    shot = snapshot(1, host=host(**of_host))
    return [c.key for c in judge(shot, "/data/gpucoord", open_keys or [], POLICY).opened]


def closed(open_keys: Keys, **of_host: object) -> Keys:
    return list(judge(snapshot(1, host=host(**of_host)), "/data", open_keys, POLICY).closed)


def disk(mount: str, free: float, total: float = 1000) -> tuple[DiskReading, ...]:
    size, left = int(total * GIB), int(free * GIB)
    return (DiskReading(mount=mount, total_bytes=size, free_bytes=left),)


def used_memory(pct: float | None) -> dict[str, object]:
    free = None if pct is None else int(400 * GIB * (100 - pct) / 100)
    return {"memory_total_bytes": 400 * GIB, "memory_available_bytes": free}


def test_low_disk_space_begins_below_five_percent_and_ends_above_seven() -> None:
    low = [("disk_space", "/home")]
    assert opened(disks=disk("/home", 49)) == low
    assert opened(disks=disk("/home", 51)) == []
    assert closed(low, disks=disk("/home", 69)) == []
    assert closed(low, disks=disk("/home", 71)) == low


def test_the_data_folder_needs_gigabytes_whatever_the_share() -> None:
    full = [("data_disk", "/data")]
    assert opened(disks=disk("/data", 1.5, total=10)) == full
    assert opened(disks=disk("/boot", 0.3, total=1)) == []
    assert closed(full, disks=disk("/data", 2.5, total=10)) == []
    assert closed(full, disks=disk("/data", 3.5, total=10)) == full


def test_an_empty_disk_is_no_longer_short_although_it_is_smaller_than_the_limit() -> None:
    full = [("data_disk", "/data")]
    assert closed(full, disks=disk("/data", 2.2, total=2.5)) == []
    assert closed(full, disks=disk("/data", 2.4, total=2.5)) == full
    assert closed(full, disks=disk("/data", 1.9, total=1.9)) == []


def test_a_full_disk_says_how_much_must_be_free() -> None:
    shot = snapshot(1, host=host(disks=disk("/data", 1.5, total=10)))
    texts = [c.text for c in judge(shot, "/data/gpucoord", [], POLICY).opened]
    assert texts == [
        "No room for logs: /data (gpucoord's data) has 1.5 of 10.0 GiB left."
        " Jobs start when 3.0 GiB are free."
    ]


def test_a_mount_that_is_gone_is_low_no_more() -> None:
    assert closed([("disk_space", "/usb")], disks=disk("/", 500)) == [("disk_space", "/usb")]


def test_the_data_folder_is_on_the_nearest_mount() -> None:
    disks = [*disk("/", 1), *disk("/data", 1), *disk("/dat", 1)]
    assert mount_of("/data/gpucoord", disks) == "/data"
    assert mount_of("/dat", disks) == "/dat"
    assert mount_of("/srv", disks) == "/"


def test_too_little_memory_or_too_much_waiting_for_it() -> None:
    memory = [("host_memory", "")]
    assert opened([("host_memory_use", "")], memory_available_bytes=20 * GIB) == memory
    assert opened(pressure=Pressure(memory_full_pct=25.0)) == memory
    assert opened(pressure=Pressure(memory_full_pct=15.0)) == []
    assert closed(memory, pressure=Pressure(memory_full_pct=15.0)) == []
    assert closed(memory, pressure=Pressure(memory_full_pct=5.0)) == memory


def test_unknown_changes_nothing() -> None:
    unknown = {"memory_total_bytes": None, "memory_available_bytes": None}
    assert opened(**unknown) == []
    assert closed([("host_memory", "")], **unknown) == []
    slowed = [("gpu_throttled", gpu().uuid)]
    assert judge(snapshot([gpu(condition=None)]), "/", slowed, POLICY).closed == ()


def test_a_busy_host_is_one_whose_memory_is_used_above_eighty_percent() -> None:
    busy = [("host_memory_use", "")]
    assert opened(**used_memory(79)) == []
    assert opened(**used_memory(81)) == busy
    assert closed(busy, **used_memory(76)) == []
    assert closed(busy, **used_memory(74)) == busy


def test_waiting_for_disks_makes_a_host_busy() -> None:
    assert opened(pressure=Pressure(io_full_pct=51.0)) == [("io_pressure", "")]
    assert closed([("io_pressure", "")], pressure=Pressure(io_full_pct=26.0)) == []


def test_cpus_count_only_where_the_policy_asks_for_it() -> None:
    shot = snapshot(1, host=host())
    asked = ConstraintPolicy(cpu_busy_pct=90.0)
    assert judge(shot, "/", [], POLICY, 99.0).opened == ()
    assert [c.key for c in judge(shot, "/", [], asked, 91.0).opened] == [("host_cpu", "")]
    assert judge(shot, "/", [("host_cpu", "")], asked, None).closed == ()


def test_a_threshold_of_a_hundred_switches_it_off() -> None:
    shot = snapshot(1, host=host(**used_memory(94)))
    off = ConstraintPolicy(memory_busy_pct=100.0)
    assert judge(shot, "/", [], off).opened == ()


def test_the_closing_threshold_must_not_be_beyond_the_opening_one() -> None:
    assert POLICY.conflicts() == {}
    wrong = ConstraintPolicy(memory_calm_pct=90.0, cpu_busy_pct=70.0)
    assert set(wrong.conflicts()) == {"memory_calm_pct", "cpu_calm_pct"}


def test_only_constraints_that_risk_lost_work_prevent_all_starts() -> None:
    grips = {kind: Constraint(kind, "", "").effect for kind in EFFECTS}
    assert {kind for kind, effect in grips.items() if effect is ConstraintEffect.HARD} == {
        "data_disk",
        "host_memory",
    }


def test_a_gpu_that_its_health_holds_back_is_a_constraint_as_long_as_that_lasts() -> None:
    slowed = [("gpu_throttled", gpu().uuid)]
    hot = snapshot([gpu(condition=Condition.THROTTLED, condition_reason="It is too hot.")])
    [found] = judge(hot, "/", [], POLICY).opened
    assert (found.key, found.text) == (slowed[0], "GPU 0 is throttled. It is too hot.")
    well = snapshot([gpu(condition=Condition.HEALTHY)])
    assert list(judge(well, "/", slowed, POLICY).closed) == slowed


@given(st.lists(st.none() | st.floats(0, 100), min_size=1, max_size=30))
def test_it_opens_and_closes_by_turns_and_only_across_the_thresholds(
    shares: list[float | None],
) -> None:
    held: Keys = []
    for share in shares:
        verdict = judge(snapshot(1, host=host(**used_memory(share))), "/", held, POLICY)
        keys = [c.key for c in verdict.opened if c.kind == "host_memory_use"]
        if keys:
            assert not held
            assert share is not None
            assert share > 80
            held = keys
        elif ("host_memory_use", "") in verdict.closed:
            assert held
            assert share is not None
            assert share <= 75
            held = []
