"""Random facts for property tests."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from monitor.facts.gpus import Ailment, Condition, GpuState, HealthReading
from monitor.facts.readings import (
    DiskReading,
    GpuReading,
    Health,
    HostCounters,
    HostReading,
    Limits,
    Pressure,
    ProcessReading,
    Snapshot,
)

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

texts = st.text(max_size=20)
counts = st.integers(0, 2**53)
percents = st.floats(0, 100)
instants = st.integers(946684800, 4102444800).map(lambda s: datetime.fromtimestamp(s + 0.25, UTC))
maybe = lambda strategy: st.none() | strategy  # noqa: E731

gpus = st.builds(
    GpuReading,
    uuid=texts,
    index=st.integers(0, 255),
    name=maybe(texts),
    health=st.sampled_from(Health),
    problem=maybe(texts),
    memory_total_bytes=maybe(counts),
    utilization_pct=maybe(percents),
    power_w=maybe(percents),
    performance_state=maybe(st.integers(0, 15)),
    state=maybe(st.sampled_from(GpuState)),
    condition=maybe(st.sampled_from(Condition)),
    condition_since=maybe(instants),
    condition_reason=maybe(texts),
    state_since=maybe(instants),
)
processes = st.builds(
    ProcessReading,
    gpu_uuid=texts,
    pid=st.integers(1, 2**31),
    start_ticks=maybe(counts),
    created_at=maybe(instants),
    user=maybe(texts),
    command=maybe(st.lists(texts, max_size=4).map(tuple)),
    memory_bytes=maybe(counts),
    sm_pct=maybe(percents),
    job_ref=maybe(texts),
)
hosts = st.builds(
    HostReading,
    name=texts,
    cpu_pct=maybe(percents),
    memory_total_bytes=maybe(counts),
    disks=st.lists(
        st.builds(DiskReading, mount=texts, total_bytes=counts, free_bytes=counts), max_size=3
    ).map(tuple),
    counters=st.builds(HostCounters, cpu_busy_s=maybe(percents), disk_read_bytes=maybe(counts)),
    limits=st.builds(
        Limits,
        cpus=maybe(percents),
        memory_origin=maybe(texts),
        visible_gpus=maybe(st.lists(texts, max_size=3).map(tuple)),
    ),
    pressure=st.builds(Pressure, cpu_some_pct=maybe(percents), io_full_pct=maybe(percents)),
)
ailments = st.builds(Ailment, code=texts, condition=st.sampled_from(Condition), text=texts)
healths = st.builds(
    HealthReading,
    gpu_uuid=texts,
    clock_reasons=maybe(counts),
    remap_pending=maybe(st.booleans()),
    slow_since=maybe(instants),
    spinning_since=maybe(instants),
    xids=st.lists(st.tuples(st.integers(1, 200), instants), max_size=3).map(tuple),
    ailments=st.lists(ailments, max_size=3).map(tuple),
)
snapshots = st.builds(
    Snapshot,
    seq=counts,
    at=instants,
    probe=st.sampled_from(["nvml", "simulated", "none"]),
    host=hosts,
    gpus=st.lists(gpus, max_size=4).map(tuple),
    processes=st.lists(processes, max_size=6).map(tuple),
    problem=maybe(texts),
    remedy=maybe(texts),
    health=st.lists(healths, max_size=3).map(tuple),
    query_errors=counts,
)
