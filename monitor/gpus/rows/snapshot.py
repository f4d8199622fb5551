"""Rows <-> facts: snapshots, samples, GPUs and claims in the database."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import repeat
from typing import Any

import msgspec
from django.db import connection
from django.db.models import Count, Exists, F, OuterRef, QuerySet, Subquery
from msgspec import Struct, field

from monitor.facts.accounts import JOB_KINDS, ClaimFact, ClaimKind, GpuTask
from monitor.facts.formats import fact_from
from monitor.facts.input_rules import parse_json
from monitor.facts.readings import GPU_FIELDS, GpuReading, Health, HostReading, Presence, Snapshot
from monitor.models import Claim, Gpu, Host, HostSample, LatestSnapshot, Sample
from monitor.runtime.rows.database import (
    MARK,
    PreparedQuery,
    compiled_once,
    insert,
    update_rows,
    upsert_rows,
)
from monitor.runtime.rows.item_isolation import FaultLog

# A snapshot as compact JSON and back, and the columns of its samples.


def dumps(snapshot: Snapshot) -> str:
    """The snapshot as JSON text, without the fields that have their default."""
    try:
        return msgspec.json.encode(snapshot).decode()
    except UnicodeEncodeError:
        # A name of the machine that is not UTF-8 must not keep the snapshot from the database.
        plain = msgspec.to_builtins(snapshot)
        return json.dumps(plain, ensure_ascii=False).encode(errors="replace").decode()


def loads(text: str) -> Snapshot:
    """The snapshot that `dumps` wrote; further fields, of a newer version, are left out.

    Raises ValueError.
    """
    try:
        return msgspec.json.decode(text, type=Snapshot)
    except msgspec.DecodeError as error:
        try:
            body = _of_tables(parse_json(text))
        except (AttributeError, KeyError, TypeError):
            raise error from None
        return msgspec.convert(body, Snapshot)


def _of_tables(body: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot of earlier builds, with tables of columns and rows, in the form of `dumps`.

    A GPU that is closed since before the upgrade stays so.
    """

    def rows(name: str) -> list[dict[str, Any]]:
        names, values = body.get(name) or ([], [])
        return [dict(zip(names, row, strict=True)) for row in values]

    of_host = {name: row for name in ("pressure", "counters", "limits") for row in rows(name)}
    host = {**body["host"], **of_host, "disks": rows("disks")}
    tables = ("gpus", "processes", "health", "instances", "costs", "owners")
    whole = {**body, "host": host, **{name: rows(name) for name in tables}}
    for health in whole["health"]:
        health["ailments"] = _named(health.get("ailments"), "code", "condition", "text")
    for owner in whole["owners"]:
        names = ("program", "memory_bytes", "level_bytes", "level_since")
        owner["residents"] = _named(owner.get("residents"), *names)
    return whole


def _named(rows: list[Any] | None, *names: str) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows or ()]


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


_GPU_UPDATES = (
    "host",
    "index",
    "name",
    "pci_id",
    "memory_total_bytes",
    "power_limit_w",
    "compute_capability",
    "state",
    "state_since_at",
    "problem",
    "simulated",
    "last_seen_at",
)
_faults = FaultLog(logging.getLogger(__name__))


def record(
    snapshot: Snapshot, changed: Collection[str] | None = None, carry: str | None = None
) -> None:
    """Store a snapshot and its samples. `changed`: rewrite only these GPUs' rows (None = all).
    `carry`: state for the next sampler (None = leave it unchanged).

    The caller opens the transaction.
    """
    rows = [g for g in snapshot.gpus if changed is None or g.uuid in changed]
    _upsert_gpus(rows, snapshot)
    insert(Sample, gpu_samples(snapshot))
    insert(HostSample, [host_sample(snapshot)])
    latest = LatestSnapshot(
        host=snapshot.host.name,
        seq=snapshot.seq,
        at=snapshot.at,
        body=dumps(snapshot),
        carry=carry or "",
        owned=sum(owner.presence is Presence.OWNER for owner in snapshot.owners),
    )
    updated = ("seq", "at", "body", "owned", *(("carry",) if carry is not None else ()))
    upsert_rows([latest], ("host",), updated)


def record_history(snapshots: Iterable[Snapshot], lasting: Iterable[int] = repeat(1)) -> int:
    """Store past samples in bulk, as at the start of a demo; returns the number of GPU samples.

    lasting: the seconds that each snapshot stands for. It is stored once for each of them.
    """
    known_uuids: set[str] = set()
    samples: list[dict[str, Any]] = []
    hosts: list[dict[str, Any]] = []
    for snapshot, seconds in zip(snapshots, lasting, strict=False):
        new = [g for g in snapshot.gpus if g.uuid not in known_uuids]
        _upsert_gpus(new, snapshot)
        known_uuids.update(g.uuid for g in new)
        samples += _repeated(gpu_samples(snapshot), seconds)
        hosts += _repeated([host_sample(snapshot)], seconds)
    insert(HostSample, hosts)
    return insert(Sample, samples)


def _repeated(rows: Sequence[dict[str, Any]], seconds: int) -> list[dict[str, Any]]:
    """The rows of one second, and the same for the seconds after it."""
    return [{**row, "t": row["t"] + second} for second in range(seconds) for row in rows]


def newest(host: str | None = None) -> Snapshot | None:
    """The newest snapshot of `host`, or of whichever host has the newest."""
    rows = _latest_rows() if host is None else _latest_rows_of(host)
    return _readable(max(rows, key=lambda row: row.at)) if rows else None


# Of each host: the text that was decoded last, and its snapshot, which never changes.
_decoded: dict[str, tuple[str, Snapshot]] = {}


def _readable(row: LatestSnapshot) -> Snapshot | None:
    """The snapshot; None if its text is damaged or of an incompatible version."""
    known = _decoded.get(row.host)
    if known is not None and known[0] == row.body:
        return known[1]
    try:
        snapshot = loads(row.body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        about = {"kind": "SNAPSHOT_UNREADABLE", "host": row.host}
        _faults.log(error, f"Cannot read the newest snapshot of {row.host}", about)
        return None
    _decoded[row.host] = (row.body, snapshot)
    return snapshot


def owned(host: str) -> int:
    """Number of GPUs of `host` with an interactive user; a cheap query."""
    return next(iter(_owned_on(host).rows()), 0)


@cache
def _owned_on(host: str) -> PreparedQuery[int, int]:
    rows = LatestSnapshot.objects.filter(host=host).values_list("owned", flat=True)
    return PreparedQuery(lambda _: rows, MARK)


def carried(host: str) -> str:
    """State that the last sampler of `host` left for the next one."""
    row = LatestSnapshot.objects.filter(host=host).values_list("carry", flat=True).first()
    return row or ""


def carry(host: str, text: str) -> None:
    """Store state for the next sampler of `host`."""
    update_rows(LatestSnapshot, {"pk": host}, carry=text)


def newest_all() -> list[Snapshot]:
    """The newest snapshot of each host, by name; those that cannot be read are left out."""
    readable = (_readable(row) for row in _latest_rows())
    return [snapshot for snapshot in readable if snapshot is not None]


def next_seq(host: str) -> int:
    """The number for the next snapshot of `host`."""
    row = LatestSnapshot.objects.filter(host=host).values_list("seq", flat=True).first()
    return (row or 0) + 1


def open_claims(host: str) -> list[ClaimFact]:
    """Open claims of jobs and model services on GPUs of `host`, oldest first."""
    return [_claim_fact(row) for row in _open_rows(host) if row.kind != ClaimKind.LOCK]


def lock_claims(host: str) -> list[ClaimFact]:
    """Claims of external holders of GPU lock files, oldest first."""
    return [_claim_fact(row) for row in _open_rows(host) if row.kind == ClaimKind.LOCK]


def end_lock_claims(rows: Collection[int], now: datetime) -> None:
    """End claims of lock files that have been released."""
    Claim.objects.filter(pk__in=rows).update(until_at=now, freed_at=now)


@compiled_once
def _open_rows(host: str) -> QuerySet[Claim]:
    return Claim.objects.filter(host=host, freed_at=None, until_at=None).order_by("id")


@compiled_once
def _held_rows(host: str) -> QuerySet[Claim]:
    return Claim.objects.filter(host=host, freed_at=None).order_by("id")


class Bookings(Struct, frozen=True):
    """By the UUID of a GPU, of all hosts: its jobs and models, and all its claims; oldest first.

    claims: with ended ones whose memory may still be in use.
    """

    tasks: Mapping[str, tuple[GpuTask, ...]] = field(default_factory=dict)
    claims: Mapping[str, tuple[ClaimFact, ...]] = field(default_factory=dict)


def bookings() -> Bookings:
    """Tasks and claims of the same moment."""
    rows = list(_all_held_rows())
    claims: dict[str, tuple[ClaimFact, ...]] = {}
    for row in rows:
        claims[row.gpu_uuid] = (*claims.get(row.gpu_uuid, ()), _claim_fact(row))
    return Bookings(_tasks(rows), claims)


def gpu_tasks() -> dict[str, tuple[GpuTask, ...]]:
    """The jobs and models on the GPUs of all hosts by UUID, oldest first."""
    return _tasks(_all_held_rows())


def _tasks(held: Iterable[Claim]) -> dict[str, tuple[GpuTask, ...]]:
    rows = [row for row in held if row.until_at is None and row.kind in JOB_KINDS]
    together: dict[str, list[str]] = {}
    for row in rows:
        together.setdefault(row.job_ref, []).append(row.gpu_uuid)
    tasks: dict[str, tuple[GpuTask, ...]] = {}
    for row in rows:
        task = _gpu_task(row, together[row.job_ref])
        tasks[row.gpu_uuid] = (*tasks.get(row.gpu_uuid, ()), task)
    return tasks


def _gpu_task(row: Claim, gpu_uuids: Sequence[str]) -> GpuTask:
    return GpuTask(
        job_ref=row.job_ref,
        name=row.task,
        owner=row.owner,
        progress=row.progress,
        ends_at=row.ends_at,
        tasks_completed=row.tasks_completed,
        kind=ClaimKind(row.kind),
        phase=row.phase,
        script=row.script,
        pid=row.leader_pid,
        port=row.port,
        since=row.from_at,
        expected_ready=row.expected_ready_at,
        paired=tuple(uuid for uuid in gpu_uuids if uuid != row.gpu_uuid),
        agent=row.holder,
    )


@compiled_once
def _all_held_rows() -> QuerySet[Claim]:
    return Claim.objects.filter(freed_at=None).order_by("id")


@compiled_once
def _latest_rows_of(host: str) -> QuerySet[LatestSnapshot]:
    return LatestSnapshot.objects.filter(host=host).defer("carry")


@compiled_once
def _latest_rows() -> QuerySet[LatestSnapshot]:
    return LatestSnapshot.objects.order_by("host").defer("carry")


def held_claims(host: str) -> list[ClaimFact]:
    """Open claims, and ended claims whose memory may still be in use; oldest first."""
    return [_claim_fact(row) for row in _held_rows(host)]


def _claim_fact(row: Claim) -> ClaimFact:
    return fact_from(
        ClaimFact,
        row,
        since=row.from_at,
        kind=ClaimKind(row.kind),
        seen=row.seen_at,
        until=row.until_at,
        row=row.pk,
        counts_tasks=False,
    )


def open_claim(fact: ClaimFact, host: str, now: datetime) -> None:
    Claim.objects.create(
        host=host,
        gpu_uuid=fact.gpu_uuid,
        job_ref=fact.job_ref,
        owner=fact.owner,
        kind=fact.kind.value,
        memory_bytes=fact.memory_bytes,
        exclusive=fact.exclusive,
        leader_pid=fact.leader_pid,
        leader_start_ticks=fact.leader_start_ticks,
        holder=fact.holder[:200],
        phase=fact.phase,
        task=fact.task[:120],
        script=fact.script,
        tasks_completed=0 if fact.counts_tasks else None,
        from_at=now,
    )


def mark_claims_seen(rows: Collection[int], now: datetime) -> None:
    """Record that processes of these claims were seen on their GPUs."""
    Claim.objects.filter(pk__in=rows, seen_at=None).update(seen_at=now)


def mark_claims_freed(rows: Collection[int], now: datetime) -> None:
    """Record that the memory of these ended claims has been released."""
    Claim.objects.filter(pk__in=rows, freed_at=None).update(freed_at=now)


def set_leader(job_ref: str, pid: int | None, start_ticks: int | None) -> int:
    """Set the leading process of a job, which identifies its GPU processes; returns the claims.

    pid None: no process identifies them.
    """
    rows = Claim.objects.filter(job_ref=job_ref, until_at__isnull=True)
    return rows.update(leader_pid=pid, leader_start_ticks=start_ticks)


def set_phase(job_ref: str, phase: str) -> int:
    """Set whether a model boots, is ready or answers requests; returns the changed claims."""
    rows = Claim.objects.filter(job_ref=job_ref, until_at__isnull=True)
    return rows.exclude(phase=phase).update(phase=phase)


def set_port(job_ref: str, port: int) -> None:
    """Store where a model listens."""
    Claim.objects.filter(job_ref=job_ref, until_at__isnull=True).update(port=port)


def set_expected_ready(job_ref: str, at: datetime) -> None:
    """Store when a model that boots is expected to take requests."""
    Claim.objects.filter(job_ref=job_ref, until_at__isnull=True).update(expected_ready_at=at)


def set_claimed_memory(job_ref: str, memory_bytes: int | None, *, exclusive: bool) -> None:
    """Store what a model holds of its GPUs from now on. None = unknown."""
    rows = Claim.objects.filter(job_ref=job_ref, until_at__isnull=True)
    rows.update(memory_bytes=memory_bytes, exclusive=exclusive)


def phases(host: str) -> dict[str, str]:
    """The phase of each model with a claim on this host, by its job."""
    rows = Claim.objects.filter(host=host, freed_at=None, until_at=None, kind=ClaimKind.LLM)
    return dict(rows.values_list("job_ref", "phase"))


def count_unreleased(host: str) -> int:
    """Ended claims whose memory may still be in use."""
    return next(iter(_unreleased(host)), 0)


@compiled_once
def _unreleased(host: str) -> QuerySet[Any, int]:
    ended = Claim.objects.filter(host=host, freed_at=None, until_at__isnull=False)
    by_host = ended.order_by().values("host").annotate(count=Count("pk"))
    return by_host.values_list("count", flat=True)


def close_claims(job_ref: str, now: datetime) -> int:
    """End a job's claims; returns their number."""
    return Claim.objects.filter(job_ref=job_ref, until_at__isnull=True).update(until_at=now)


def lock_gpus(gpu_uuids: Collection[str]) -> None:
    """Lock these rows until the transaction ends. Call it before they change one after the other.

    Loops that lock several rows in different orders would wait for each other. A single row, and
    SQLite, which has one writer at a time, need no order.
    """
    unique = set(gpu_uuids)
    if len(unique) > 1 and connection.vendor == "postgresql" and connection.in_atomic_block:
        rows = Gpu.objects.filter(pk__in=unique).order_by("pk")
        list(rows.select_for_update(no_key=True).values_list("pk"))


def count_task(gpu_uuids: Collection[str], number: int = 1) -> None:
    """Count a job that succeeded on these GPUs, or requests that a model there answered."""
    Gpu.objects.filter(pk__in=gpu_uuids).update(tasks_completed=F("tasks_completed") + number)


def count_of_claim(job_ref: int, number: int) -> None:
    """Count requests that a model has answered, or items that a worker has completed."""
    claims = Claim.objects.filter(job_ref=str(job_ref), until_at=None)
    claims.update(tasks_completed=F("tasks_completed") + number)


def completed_tasks(host: str) -> dict[str, int]:
    """How many jobs succeeded on each GPU of a host, and requests were answered, by UUID."""
    return dict(Gpu.objects.filter(host=host).values_list("uuid", "tasks_completed"))


def _upsert_gpus(readings: Sequence[GpuReading], snapshot: Snapshot) -> None:
    lock_gpus([reading.uuid for reading in readings])
    # A GPU that does not respond keeps its last_seen_at, name and size.
    for answers in (True, False):
        rows = [
            _gpu_row(reading, snapshot)
            for reading in readings
            if (reading.health is not Health.LOST) is answers
        ]
        updates = _GPU_UPDATES if answers else ("state", "state_since_at", "problem")
        Gpu.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["uuid"], update_fields=updates
        )


def _gpu_row(reading: GpuReading, snapshot: Snapshot) -> Gpu:
    row = Gpu(
        uuid=reading.uuid,
        host=snapshot.host.name,
        index=reading.index,
        name=reading.name or "",
        pci_id=reading.pci_id or "",
        memory_total_bytes=reading.memory_total_bytes,
        power_limit_w=reading.power_limit_w,
        compute_capability=reading.compute_capability or "",
        state_since_at=reading.state_since or snapshot.at,
        problem=reading.problem or "",
        simulated=snapshot.probe == "simulated",
        first_seen_at=snapshot.at,
        last_seen_at=snapshot.at,
    )
    if reading.state is not None:
        row.state = reading.state.value
    return row


def last_reading() -> Subquery:
    """Of the host of a row with the column `host`, if it is registered: for an annotation."""
    of_host = LatestSnapshot.objects.filter(pk=OuterRef("host"))
    started = Host.objects.filter(pk=OuterRef("host"), started_at__isnull=False)
    return Subquery(of_host.filter(Exists(started)).values("at"))
