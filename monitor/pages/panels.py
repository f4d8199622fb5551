"""Which charts the history pages have: of a GPU, a host, a person, a process."""

from __future__ import annotations

from monitor.formats import GIB
from monitor.models import Gpu
from monitor.pages.cards import in_gib
from monitor.pages.history_charts import Line, Panel, Row, Value, highest, mean
from monitor.policy.windows import Window


def gpu(row: Gpu, window: Window) -> list[Panel]:
    limit = row.power_limit_w
    return [
        Panel(
            "Utilisation",
            "%",
            _lines(window, mean("utilization_pct_s", "utilization_known_s"), "utilization_max_pct"),
            top=100,
        ),
        Panel(
            "Memory",
            "GiB",
            _lines(window, mean("memory_byte_s", "memory_known_s", GIB), "memory_max_bytes", GIB),
            top=in_gib(row.memory_total_bytes),
        ),
        Panel(
            "Power",
            "W",
            _lines(window, mean("energy_j", "power_known_s"), "power_max_w"),
            top=limit,
            limit=limit,
        ),
        Panel("Temperature", "°C", (Line("highest", highest("temperature_max_c")),), top=100),
    ]


def host(window: Window, memory_total_bytes: int | None) -> list[Panel]:
    return [
        Panel("CPU", "%", _lines(window, mean("cpu_pct_s", "cpu_known_s"), "cpu_max_pct"), top=100),
        Panel(
            "Memory",
            "GiB",
            _lines(window, mean("memory_byte_s", "memory_known_s", GIB), "memory_max_bytes", GIB),
            top=in_gib(memory_total_bytes),
        ),
        Panel("Load", "", _lines(window, mean("load_s", "load_known_s"), "load_max")),
        Panel(
            "Disk",
            "MB/s",
            (
                Line("read", mean("disk_read_bytes", "disk_known_s", 1e6)),
                Line("written", mean("disk_written_bytes", "disk_known_s", 1e6), "second"),
            ),
        ),
        Panel(
            "Waiting for CPU or I/O",
            "%",
            (
                Line("CPU", mean("cpu_pressure_pct_s", "pressure_known_s")),
                Line("I/O", mean("io_pressure_pct_s", "pressure_known_s"), "second"),
            ),
        ),
        Panel(
            "Waiting for memory",
            "%",
            (Line("mean", mean("memory_pressure_pct_s", "pressure_known_s")),),
        ),
    ]


def person() -> list[Panel]:
    return [
        Panel("GPUs used", "", (Line("mean", _used),), top=1),
        Panel("GPU memory held", "GiB", (Line("mean", mean("memory_byte_s", "seen_s", GIB)),)),
        Panel("Processes on GPUs", "", (Line("mean", mean("held_s", "seen_s")),), top=1),
        Panel("Power", "W", (Line("mean", _power),)),
    ]


def process(gpu_memory_bytes: int | None) -> list[Panel]:
    return [
        Panel("Share of the GPU", "%", (Line("mean", _share),), top=100),
        Panel("Memory", "GiB", (Line("mean", _memory),), top=in_gib(gpu_memory_bytes)),
        Panel("Power", "W", (Line("mean", _own_power),)),
    ]


def _lines(window: Window, value: Value, most: str, scale: float = 1) -> tuple[Line, ...]:
    """Means; with the highest second beside them where a point is longer than half a minute."""
    main = Line("mean", value)
    return (main, Line("highest", highest(most, scale), "peak")) if window.step > 30 else (main,)


def _used(row: Row) -> float | None:
    """On average so many GPUs were fully used; unknown when none of the time held is known."""
    if row["held_s"] and not row["known_s"]:
        return None
    return float(row["sm_s"]) / row["seen_s"] if row["seen_s"] else None


def _share(row: Row) -> float | None:
    return min(100.0, 100 * row["sm_s"] / row["known_s"]) if row["known_s"] else None


def _memory(row: Row) -> float | None:
    known = row["held_s"] and (row["memory_byte_s"] or row["peak_memory_bytes"] is not None)
    return row["memory_byte_s"] / row["held_s"] / GIB if known else None


def _power(row: Row) -> float | None:
    if row["joules"] is None:
        return None if row["held_s"] else 0.0
    return float(row["joules"]) / row["seen_s"] if row["seen_s"] else None


def _own_power(row: Row) -> float | None:
    """While it was there."""
    known = row["joules"] is not None and row["held_s"]
    return float(row["joules"]) / row["held_s"] if known else None
