"""Fills the minutes and hours of the demo's past for its GPUs, host and processes."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, connections
from django.utils import timezone
from msgspec import Struct

from gpucoord_site.demo import past as days
from gpucoord_site.demo.jobs import is_backlog_due, send_prompt, submit_backlog
from gpucoord_site.demo.past import (
    DAY_S,
    DAYS,
    HOUR_S,
    LARGE,
    MINUTE_S,
    PEOPLE,
    Load,
    sampled_hours,
)
from monitor.facts.readings import OwnerSource, Snapshot
from monitor.gpus.sampling.probes.simulated import GIB, Scenario
from monitor.models import (
    Gpu,
    GpuHour,
    GpuMinute,
    HostHour,
    HostMinute,
    ProcessHour,
    ProcessMinute,
    ProcessUse,
)
from monitor.runtime.rows.database import insert
from monitor.usage.policy.accounting import UsageAmounts
from monitor.usage.rows import rollups

# Readings per hour; fewer of a large server, so that the demo starts soon.
LOOKS, LOOKS_LARGE = 4, 2
# PID, start ticks and GPU of a process.
UseKey = tuple[int, int, str]


class UsagePart(Struct):
    """The use of a GPU by a process in one step."""

    t: int
    sm_s: float = 0.0
    held_s: float = 0.0
    known_s: float = 0.0
    memory_byte_s: float = 0.0
    peak_memory_bytes: int = 0
    joules: float = 0.0

    def add(self, seconds: float, pct: float | None, memory: int | None, watts: float) -> None:
        self.held_s += seconds
        self.memory_byte_s += seconds * (memory or 0)
        self.peak_memory_bytes = max(self.peak_memory_bytes, memory or 0)
        if pct is not None:
            self.known_s += seconds
            self.sm_s += seconds * pct / 100
            self.joules += seconds * watts

    def row(self, use_id: int) -> dict[str, object]:
        return {
            "use_id": use_id,
            "t": self.t,
            "sm_s": self.sm_s,
            "held_s": self.held_s,
            "known_s": self.known_s,
            "memory_byte_s": self.memory_byte_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "joules": self.joules,
        }


class UseIdentity(Struct):
    """The owner of a process, and its first and last second (epoch seconds)."""

    user: str
    program: str
    job_ref: str = ""
    job_owner: str = ""
    first: int = sys.maxsize
    last: int = 0


class PastUsage:
    """Collects readings and writes them in bulk."""

    def __init__(self, scenario: Scenario, host: str, now: datetime) -> None:
        self._scenario, self._host = scenario, host
        self._now, self._now_t = now, int(now.timestamp())
        self._identities: dict[UseKey, UseIdentity] = {}
        self._parts: dict[type, dict[tuple[UseKey, int], UsagePart]] = {
            ProcessMinute: {},
            ProcessHour: {},
        }

    def watch(self, past: Iterable[tuple[Snapshot, float]]) -> None:
        """Processes of the last hours, from snapshots that each stand for some seconds."""
        for snapshot, seconds in past:
            t = int(snapshot.at.timestamp())
            power = {g.uuid: (g.utilization_pct or 0, g.power_w or 0) for g in snapshot.gpus}
            for p in snapshot.processes:
                busy, watts = power[p.gpu_uuid]
                own = watts * (p.sm_pct or 0) / busy if busy else 0.0
                key = (p.pid, p.start_ticks or 0, p.gpu_uuid)
                if key not in self._identities:
                    self._identities[key] = UseIdentity(
                        user=p.user or "",
                        program=p.program or ("python3" if p.job_ref else ""),
                        job_ref=p.job_ref or "",
                        job_owner=p.job_owner or "",
                    )
                part = self._part(ProcessMinute, key, t, MINUTE_S)
                part.add(seconds, p.sm_pct, p.memory_bytes, own)

    def write(self) -> None:
        """Everything, oldest first; hours of the newest minutes are added up as always."""
        gpus, seed = self._scenario.size, self._scenario.seed
        lives = days.lives(gpus, seed, self._now_t)
        # Later times are covered by samples.
        end = rollups.floor(self._now_t - HOUR_S * sampled_hours(gpus), MINUTE_S)
        day = rollups.floor(self._now_t - DAY_S, HOUR_S)
        first = rollups.floor(self._now_t - DAYS * DAY_S, HOUR_S)
        per_hour = LOOKS if gpus <= LARGE else LOOKS_LARGE
        looks = range(first, day, HOUR_S // per_hour)
        hours = list(days.loads(lives, gpus, seed, looks))
        times = [t for t in range(day, end, MINUTE_S) if days.watched(t, self._now_t)]
        minutes = list(days.loads(lives, gpus, seed, times))
        self._count(ProcessHour, hours, HOUR_S, HOUR_S / per_hour)
        self._count(ProcessMinute, minutes, MINUTE_S, MINUTE_S)
        insert(GpuHour, self._gpus(hours, HOUR_S, HOUR_S / per_hour))
        insert(GpuMinute, self._gpus(minutes, MINUTE_S, MINUTE_S))
        HostHour.objects.bulk_create(self._hosts(HostHour, range(first, day, HOUR_S), HOUR_S))
        HostMinute.objects.bulk_create(self._hosts(HostMinute, times, MINUTE_S))
        self._write_processes()
        Gpu.objects.update(first_seen_at=datetime.fromtimestamp(first, UTC))
        rollups.roll_up(self._now + timedelta(seconds=rollups.LATE_S))
        rollups.roll_up_processes(self._now)

    def _part(self, model: type, key: UseKey, t: int, step: int) -> UsagePart:
        """The step that `t` is in, of a process whose identity is noted."""
        identity = self._identities[key]
        identity.first, identity.last = min(identity.first, t), max(identity.last, t)
        begin, parts = t - t % step, self._parts[model]
        part = parts.get((key, begin))
        if part is None:
            part = parts[key, begin] = UsagePart(begin)
        return part

    def _count(self, model: type, loads: Sequence[Load], step: int, seconds: float) -> None:
        for load in loads:
            for life, pct in load.parts:
                key = (life.pid, life.start_ticks, self._scenario.uuids[load.gpu])
                if key not in self._identities:
                    self._identities[key] = UseIdentity(life.user or "", life.program)
                part = self._part(model, key, load.t, step)
                own = load.power_w * pct / load.busy_pct if load.busy_pct else 0.0
                part.add(seconds, pct, int((life.gib or 0) * GIB), own)

    def _gpus(self, loads: Sequence[Load], step: int, seconds: float) -> list[dict[str, Any]]:
        rows: dict[tuple[int, int], dict[str, Any]] = {}
        uuids = self._scenario.uuids
        for load in loads:
            key = (rollups.floor(load.t, step), load.gpu)
            if key not in rows:
                rows[key] = {"gpu_id": uuids[load.gpu], "t": key[0], **_empty()}
            _add(rows[key], load, int(seconds))
        return [rows[key] for key in sorted(rows)]

    def _hosts(self, model: Any, times: Iterable[int], step: int) -> Iterator[Any]:
        for t in times:
            host = self._scenario.host(datetime.fromtimestamp(t, UTC), self._host)
            used = (host.memory_total_bytes or 0) - (host.memory_available_bytes or 0)
            cpu, load = host.cpu_pct or 0, host.load_1 or 0
            yield model(
                host=self._host,
                t=t,
                seen_s=step,
                cpu_pct_s=cpu * step,
                cpu_known_s=step,
                cpu_max_pct=min(100, cpu * 1.3),
                load_s=load * step,
                load_known_s=step,
                load_max=load * 1.4,
                memory_byte_s=used * step,
                memory_known_s=step,
                memory_max_bytes=used,
                disk_read_bytes=(host.disk_read_bps or 0) * step,
                disk_written_bytes=(host.disk_write_bps or 0) * step,
                disk_known_s=step,
                cpu_pressure_pct_s=(host.pressure.cpu_some_pct or 0) * step,
                memory_pressure_pct_s=0,
                io_pressure_pct_s=(host.pressure.io_some_pct or 0) * step,
                pressure_known_s=step,
            )

    def _write_processes(self) -> None:
        recent = self._now_t - 30
        uses = {key: self._use(key, identity, recent) for key, identity in self._identities.items()}
        for parts in self._parts.values():
            for (key, _), part in parts.items():
                _sum(uses[key], part)
        insert(ProcessUse, uses.values())
        columns = ("pk", "pid", "start_ticks", "gpu_id")
        numbers = {tuple(key): pk for pk, *key in ProcessUse.objects.values_list(*columns)}
        for model, parts in self._parts.items():
            rows = sorted(parts.items(), key=lambda item: item[1].t)
            insert(model, (part.row(numbers[key]) for (key, _), part in rows))

    def _use(self, key: UseKey, identity: UseIdentity, recent: int) -> dict[str, Any]:
        pid, ticks, uuid = key
        return {
            "host": self._host,
            "pid": pid,
            "start_ticks": ticks,
            "gpu_id": uuid,
            "user": identity.user,
            "program": identity.program,
            "job_ref": identity.job_ref,
            "job_owner": identity.job_owner,
            "owner_source": _source(identity).value,
            "created_at": _stored(ticks / 100) if ticks else None,
            "first_seen_at": _stored(identity.first),
            "last_seen_at": _stored(identity.last),
            "ended_at": None if identity.last >= recent else _stored(identity.last),
            "source": "process_utilization",
            **dict.fromkeys(UsageAmounts.__struct_fields__, 0),
        }


def _stored(t: float) -> Any:
    """A time as the database stores it: `insert` does not convert."""
    return connection.ops.adapt_datetimefield_value(datetime.fromtimestamp(t, UTC))


def _source(identity: UseIdentity) -> OwnerSource:
    if identity.job_owner:
        return OwnerSource.JOB
    return OwnerSource.UID if identity.user else OwnerSource.UNKNOWN


# Maxima are higher than the means by these factors.
_PEAKS = {"utilization_pct": 1.06, "power_w": 1.04}


def _empty() -> dict[str, Any]:
    row: dict[str, Any] = {"seen_s": 0}
    for measure in rollups.GPUS.measures:
        row |= {name: 0 for name in (measure.total, measure.known_s) if name}
        row |= {measure.greatest: None} if measure.greatest else {}
    return row


def _add(row: dict[str, Any], load: Load, seconds: int) -> None:
    """The figures that a load has; others stay unknown."""
    row["seen_s"] += seconds
    for measure in rollups.GPUS.measures:
        value = load.figures.get(measure.source)
        if value is None:
            continue
        if measure.total and measure.known_s:
            row[measure.total] += value * seconds
            row[measure.known_s] += seconds
        if measure.greatest:
            peak = value * _PEAKS.get(measure.source, 1)
            peak = min(100, peak) if measure.source.endswith("_pct") else peak
            row[measure.greatest] = max(row[measure.greatest] or 0, peak)


def _sum(use: dict[str, Any], part: UsagePart) -> None:
    use["sm_s"] += part.sm_s
    use["held_s"] += part.held_s
    use["known_s"] += part.known_s
    use["memory_byte_s"] += part.memory_byte_s
    use["memory_known_s"] += part.held_s
    use["peak_memory_bytes"] = max(use["peak_memory_bytes"], part.peak_memory_bytes)
    use["joules"] += part.joules


# Activity of the demo's users while it runs: they send prompts, and now and then many scripts.
#
# It is a process of its own, which ends with the demo.


# Seconds between two prompts.
SHORTEST_S, LONGEST_S = 1.5, 5.0


@contextmanager
def active(home: Path) -> Iterator[None]:
    """Users are active until the context ends, or this process does."""
    parent = os.pidfd_open(os.getpid())
    pid = os.fork()
    if not pid:
        _run(parent, home)
    os.close(parent)
    child = os.pidfd_open(pid)
    try:
        yield
    finally:
        # The supervisor may have reaped it already.
        with suppress(ProcessLookupError, ChildProcessError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(child)


def _run(parent: int, home: Path) -> None:
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        dice = Random(settings.CONFIG.simulated_seed)
        users = Activity(home, dice)
        while not select.select([parent], [], [], dice.uniform(SHORTEST_S, LONGEST_S))[0]:
            # The service may be busy with its database; the next turn comes soon.
            with suppress(Exception):
                users.act(timezone.now())
                continue
            connections.close_all()
    finally:
        os._exit(0)


class Activity:
    def __init__(self, home: Path, dice: Random) -> None:
        self._home, self._dice = home, dice
        self._backlog_at: datetime | None = None

    def act(self, now: datetime) -> None:
        """A prompt, and the backlog when it is due."""
        send_prompt(list(User.objects.filter(username__in=PEOPLE)), self._dice, now)
        if is_backlog_due(self._backlog_at, now):
            operator = User.objects.get(username=settings.CONFIG.admin_user)
            if submit_backlog(operator, self._home, now):
                self._backlog_at = now
