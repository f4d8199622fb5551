from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.constraints import GIB, ConstraintPolicy, judge, mount_of
from monitor.readings import DiskReading, Pressure
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


def test_low_disk_space_begins_below_five_percent_and_ends_above_seven() -> None:
    low = [("disk_space", "/home")]
    assert opened(disks=disk("/home", 49)) == low
    assert opened(disks=disk("/home", 51)) == []
    assert closed(low, disks=disk("/home", 69)) == []
    assert closed(low, disks=disk("/home", 71)) == low


def test_the_data_folder_needs_gigabytes_whatever_the_share() -> None:
    assert opened(disks=disk("/data", 1.5, total=10)) == [("disk_space", "/data")]
    assert opened(disks=disk("/boot", 0.3, total=1)) == []


def test_a_mount_that_is_gone_is_low_no_more() -> None:
    assert closed([("disk_space", "/usb")], disks=disk("/", 500)) == [("disk_space", "/usb")]


def test_the_data_folder_is_on_the_nearest_mount() -> None:
    disks = [*disk("/", 1), *disk("/data", 1), *disk("/dat", 1)]
    assert mount_of("/data/gpucoord", disks) == "/data"
    assert mount_of("/dat", disks) == "/dat"
    assert mount_of("/srv", disks) == "/"


def test_too_little_memory_or_too_much_waiting_for_it() -> None:
    memory = [("host_memory", "")]
    assert opened(memory_available_bytes=20 * GIB) == memory
    assert opened(pressure=Pressure(memory_full_pct=25.0)) == memory
    assert opened(pressure=Pressure(memory_full_pct=15.0)) == []
    assert closed(memory, pressure=Pressure(memory_full_pct=15.0)) == []
    assert closed(memory, pressure=Pressure(memory_full_pct=5.0)) == memory


def test_unknown_changes_nothing() -> None:
    unknown = {"memory_total_bytes": None, "memory_available_bytes": None}
    assert opened(**unknown) == []
    assert closed([("host_memory", "")], **unknown) == []
    hot = [("gpu_temperature", gpu().uuid)]
    assert judge(snapshot([gpu(temperature_c=None)]), "/", hot, POLICY).closed == ()


temperatures = st.lists(st.none() | st.floats(20, 110), min_size=1, max_size=30)


@given(temperatures)
def test_heat_opens_and_closes_by_turns_and_only_across_the_thresholds(
    heats: list[float | None],
) -> None:
    held: Keys = []
    for heat in heats:
        verdict = judge(snapshot([gpu(temperature_c=heat)]), "/", held, POLICY)
        if verdict.opened:
            assert not held
            assert heat is not None
            assert heat >= 85
            held = [verdict.opened[0].key]
        elif verdict.closed:
            assert held
            assert heat is not None
            assert heat <= 80
            held = []
