"""Metrics of GPUs' health: condition, slow-downs, memory errors, XIDs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from monitor.gpu_metrics import gpu_labels
from monitor.health import Condition, HealthReading
from monitor.metric_families import Families, Labels
from monitor.readings import GpuReading, Health, Snapshot

# The bits of NVML's clocks event reasons, in words that never change.
CLOCK_REASONS: Mapping[int, str] = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
XIDS = "XIDs, the errors that the driver reports of a GPU"
Counts = Mapping[int, float]


def add_health(into: Families, snapshot: Snapshot, xids: Mapping[str, Counts]) -> None:
    """`xids`: how many of which code have been heard of each GPU."""
    healths = {health.gpu_uuid: health for health in snapshot.health}
    for gpu in snapshot.gpus:
        labels = gpu_labels(gpu, snapshot)
        _add_condition(into, gpu, labels)
        _add_xids(into, xids.get(gpu.uuid, {}), labels)
        health = healths.get(gpu.uuid)
        if health is not None and gpu.health is not Health.LOST:
            _add_clocks(into, health, labels)
            _add_memory(into, health, labels)


def _add_condition(into: Families, gpu: GpuReading, labels: Labels) -> None:
    if gpu.condition is None:
        return
    what = "1 for the condition that the GPU is in; only a healthy one gets new jobs."
    for condition in Condition:
        mark = {**labels, "condition": condition.value}
        into.gauge("gpu_condition", what, mark, gpu.condition is condition)


def _add_xids(into: Families, counts: Counts, labels: Labels) -> None:
    total = sum(counts.values())
    into.counter("gpu_xid_errors_total", f"{XIDS}, heard so far.", labels, total)
    for code, count in sorted(counts.items()):
        mark = {**labels, "xid": str(code)}
        into.counter("gpu_xid_errors_by_code_total", f"{XIDS}, by number.", mark, count)


def _add_clocks(into: Families, health: HealthReading, labels: Labels) -> None:
    bits = health.clock_reasons
    if bits is None:
        return
    what = "1 while this holds the GPU's clocks back; hw_ and sw_ ones are harmful."
    for bit, reason in CLOCK_REASONS.items():
        mark = {**labels, "reason": reason}
        into.gauge("gpu_throttle_reason", what, mark, bool(bits & bit))


def _add_memory(into: Families, health: HealthReading, labels: Labels) -> None:
    what = "Memory errors since the driver was loaded."
    for kind, count in (
        ("corrected", health.ecc_corrected),
        ("uncorrected", health.ecc_uncorrected),
    ):
        into.counter("gpu_ecc_errors_total", what, {**labels, "kind": kind}, count)
    what = "Rows of memory replaced by spare ones, by the error that made it necessary."
    for kind, count in (
        ("corrected", health.remapped_corrected),
        ("uncorrected", health.remapped_uncorrected),
    ):
        into.gauge("gpu_remapped_rows_count", what, {**labels, "kind": kind}, count)
    for name, what, read in MEMORY:
        into.gauge(name, what, labels, read(health))


MEMORY: tuple[tuple[str, str, Callable[[HealthReading], float | None]], ...] = (
    ("gpu_retired_pages_count", "Pages of memory out of use.", lambda h: h.retired_pages),
    ("gpu_row_remap_pending", "1 until a reset replaces bad rows.", lambda h: h.remap_pending),
    ("gpu_row_remap_failed", "1 when no spare row was left.", lambda h: h.remap_failed),
)
