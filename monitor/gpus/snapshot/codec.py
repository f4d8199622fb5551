"""A snapshot as compact JSON and back: tables of columns and rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from monitor.facts.gpu_states import Ailment, Condition, GpuState, HealthReading
from monitor.facts.hosts import Limits
from monitor.facts.presence import BaselineProcess, OwnerReading, Presence
from monitor.facts.readings import (
    GPU_FIELDS,
    ComputeMode,
    DiskReading,
    GpuReading,
    Health,
    HostCounters,
    HostReading,
    OwnerSource,
    Pressure,
    ProcessReading,
    Snapshot,
)
from monitor.facts.usage import CallCost, InstanceReading, UseSource

Table = tuple[Sequence[str], list[Any]]


def dumps(snapshot: Snapshot) -> str:
    """The snapshot as JSON text; None, empty and default fields of the host are left out."""
    host = snapshot.host
    body = {
        "seq": snapshot.seq,
        "at": _time(snapshot.at),
        "probe": snapshot.probe,
        "problem": snapshot.problem,
        "remedy": snapshot.remedy,
        "failures": snapshot.failures,
        "tried_at": _time(snapshot.tried_at) if snapshot.tried_at else None,
        "query_errors": snapshot.query_errors,
        "init_failures": snapshot.init_failures,
        "host": {name: getattr(host, name) for name in _HOST if getattr(host, name) is not None},
        "disks": _table(_DISK, host.disks),
        "pressure": _table(_PRESSURE, [host.pressure]),
        "counters": _table(_COUNTERS, [host.counters]),
        "limits": _table(_LIMITS, [host.limits]),
        "gpus": _table(_GPU, snapshot.gpus),
        "processes": _table(_PROCESS, snapshot.processes),
        "health": _table(_HEALTH, snapshot.health),
        "instances": _table(_INSTANCE, snapshot.instances),
        "costs": _table(_COST, snapshot.costs),
        "dropped": snapshot.dropped,
        "owners": _table(_OWNER, snapshot.owners),
    }
    text = json.dumps(body, separators=(",", ":"), default=_plain, ensure_ascii=False)
    # A name of the machine that is not UTF-8 must not keep the snapshot from the database.
    return text.encode(errors="replace").decode()


def _read_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def loads(text: str) -> Snapshot:
    """The snapshot that `dumps` wrote, also one by an older or newer version of this code."""
    body = json.loads(text)
    host = {name: value for name, value in body["host"].items() if name in _HOST}
    host["cpu_idle_since"] = _read_time(host.get("cpu_idle_since"))
    return Snapshot(
        seq=body["seq"],
        at=datetime.fromisoformat(body["at"]),
        probe=body["probe"],
        problem=body["problem"],
        remedy=body["remedy"],
        failures=body.get("failures", 0),
        tried_at=_read_time(body.get("tried_at")),
        query_errors=body.get("query_errors", 0),
        init_failures=body.get("init_failures", 0),
        host=HostReading(
            **host,
            disks=tuple(DiskReading(**row) for row in _rows(body["disks"], _DISK)),
            pressure=Pressure(**next(_rows(body["pressure"], _PRESSURE), {})),
            counters=HostCounters(**next(_rows(body.get("counters", _EMPTY), _COUNTERS), {})),
            limits=Limits(**next(_rows(body.get("limits", _EMPTY), _LIMITS), {})),
        ),
        gpus=tuple(GpuReading(**row) for row in _rows(body["gpus"], _GPU)),
        processes=tuple(ProcessReading(**row) for row in _rows(body["processes"], _PROCESS)),
        health=tuple(HealthReading(**row) for row in _rows(body.get("health", _EMPTY), _HEALTH)),
        instances=tuple(
            InstanceReading(**row) for row in _rows(body.get("instances", _EMPTY), _INSTANCE)
        ),
        costs=tuple(CallCost(**row) for row in _rows(body.get("costs", _EMPTY), _COST)),
        dropped=body.get("dropped", 0),
        owners=tuple(OwnerReading(**row) for row in _rows(body.get("owners", _EMPTY), _OWNER)),
    )


def _names(kind: type, skip: tuple[str, ...] = ()) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name not in skip)


_HOST = _names(HostReading, skip=("disks", "pressure", "counters", "limits"))
_DISK = _names(DiskReading)
_PRESSURE = _names(Pressure)
_COUNTERS = _names(HostCounters)
_LIMITS = _names(Limits)
_EMPTY: Table = ((), [])
_GPU = _names(GpuReading)
_PROCESS = _names(ProcessReading)
_HEALTH = _names(HealthReading)
_INSTANCE = _names(InstanceReading)
_COST = _names(CallCost)
_OWNER = _names(OwnerReading)
_REQUIRED = {
    field.name
    for kind in (
        DiskReading,
        GpuReading,
        ProcessReading,
        HealthReading,
        InstanceReading,
        CallCost,
        OwnerReading,
    )
    for field in fields(kind)
    if field.default is MISSING
}


def _time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat()


def _plain(value: object) -> object:
    """Values that JSON does not support."""
    return _time(value) if isinstance(value, datetime) else _row(value)


def _row(value: object) -> list[str | int]:
    if isinstance(value, Ailment):
        return [value.code, value.condition.value, value.text]
    if isinstance(value, BaselineProcess):
        return [value.program, value.memory_bytes, value.level_bytes, _time(value.level_since)]
    raise TypeError(f"a snapshot can't hold {value!r}")


def _ailments(rows: list[list[str]]) -> tuple[Ailment, ...]:
    return tuple(Ailment(code, Condition(condition), text) for code, condition, text in rows)


def _xids(rows: list[tuple[int, str]]) -> tuple[tuple[int, datetime], ...]:
    return tuple((code, datetime.fromisoformat(at)) for code, at in rows)


def _residents(rows: list[tuple[str, int, int, str]]) -> tuple[BaselineProcess, ...]:
    return tuple(
        BaselineProcess(
            program=program,
            memory_bytes=memory,
            level_bytes=level,
            level_since=datetime.fromisoformat(since),
        )
        for program, memory, level, since in rows
    )


def _table(names: Sequence[str], rows: Sequence[object]) -> Table:
    """Columns and rows, without columns that are None in each row."""
    values = list(map(attrgetter(*names), rows))
    used = [
        i
        for i, name in enumerate(names)
        if name in _REQUIRED or any(row[i] is not None for row in values)
    ]
    return [names[i] for i in used], [[row[i] for i in used] for row in values]


def _rows(table: Table, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    columns, rows = table
    kept_columns = [(i, name) for i, name in enumerate(columns) if name in names]
    readers = [(i, name, _READERS.get(name)) for i, name in kept_columns]
    for row in rows:
        yield {
            name: read(row[i]) if read and row[i] is not None else row[i]
            for i, name, read in readers
        }


_READERS: dict[str, Callable[[Any], Any]] = {
    "health": Health,
    "state": GpuState,
    "state_since": datetime.fromisoformat,
    "created_at": datetime.fromisoformat,
    "idle_since": datetime.fromisoformat,
    "orphaned_since": datetime.fromisoformat,
    "command": tuple,
    "visible_gpus": tuple,
    "condition": Condition,
    "compute_mode": ComputeMode,
    "condition_since": datetime.fromisoformat,
    "slow_since": datetime.fromisoformat,
    "slow_at": datetime.fromisoformat,
    "spinning_since": datetime.fromisoformat,
    "over_power_since": datetime.fromisoformat,
    "calls_failing_since": datetime.fromisoformat,
    "ailments": _ailments,
    "xids": _xids,
    "reported": tuple,
    "unsupported": tuple,
    "failed_calls": tuple,
    "source": UseSource,
    "owner_source": OwnerSource,
    "presence": Presence,
    "since": datetime.fromisoformat,
    "came_at": datetime.fromisoformat,
    "until": datetime.fromisoformat,
    "residents": _residents,
}


_SAMPLED = tuple(field.name for field in GPU_FIELDS if field.is_sampled)


def gpu_samples(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The columns of a sample of each GPU that can be read."""
    t = int(snapshot.at.timestamp())
    return [
        {"gpu_id": gpu.uuid, "t": t, **{name: getattr(gpu, name) for name in _SAMPLED}}
        for gpu in snapshot.gpus
        if gpu.health is not Health.LOST
    ]


def host_sample(snapshot: Snapshot) -> dict[str, Any]:
    """The columns of a sample of the host."""
    host = snapshot.host
    return {
        "host": host.name,
        "t": int(snapshot.at.timestamp()),
        "cpu_pct": host.cpu_pct,
        "load_1": host.load_1,
        "memory_used_bytes": _used(host),
        "swap_used_bytes": host.swap_used_bytes,
        "disk_read_bps": host.disk_read_bps,
        "disk_write_bps": host.disk_write_bps,
        "cpu_pressure_pct": host.pressure.cpu_some_pct,
        "memory_pressure_pct": host.pressure.memory_some_pct,
        "io_pressure_pct": host.pressure.io_some_pct,
    }


def _used(host: HostReading) -> int | None:
    if host.memory_total_bytes is None or host.memory_available_bytes is None:
        return None
    return host.memory_total_bytes - host.memory_available_bytes
