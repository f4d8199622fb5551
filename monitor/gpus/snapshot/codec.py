"""A snapshot as compact JSON and back, and the columns of its samples."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from monitor.facts.readings import GPU_FIELDS, Health, HostReading, Snapshot

_SNAPSHOT = TypeAdapter(Snapshot)


def dumps(snapshot: Snapshot) -> str:
    """The snapshot as JSON text, without the fields that have their default."""
    try:
        return _SNAPSHOT.dump_json(snapshot, exclude_defaults=True).decode()
    except PydanticSerializationError:
        # A name of the machine that is not UTF-8 must not keep the snapshot from the database.
        plain = _SNAPSHOT.dump_python(snapshot, mode="json", exclude_defaults=True)
        return json.dumps(plain, ensure_ascii=False).encode(errors="replace").decode()


def loads(text: str) -> Snapshot:
    """The snapshot that `dumps` wrote; further fields, of a newer version, are left out.

    Raises ValueError.
    """
    return _SNAPSHOT.validate_json(text)


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
