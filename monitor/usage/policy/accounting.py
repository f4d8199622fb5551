"""Add up what each process used of a GPU, sweep by sweep.

A process is held for the time between two sweeps in which it was listed. One that came or left
between two sweeps was there for half of that time, or since it started; longer only if its work
does not fit. What it did in that half is known only as far as the driver reports it. A gap of more
than `gap_s` adds to the held seconds (at most `longest_gap_s`), not to the known seconds, so
unwatched time lowers the coverage. Energy above idle power is divided in proportion to work; idle
power is not attributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from monitor.facts.readings import (
    EndedProcess,
    GpuMark,
    GpuReading,
    Health,
    OwnerSource,
    ProcessReading,
    UseSource,
)
from monitor.usage.policy.attribution import EnergyMeter

# (GPU, pid)
On = tuple[str, int]


class UsageAmounts(Struct, omit_defaults=True):
    """Amounts of one GPU: seconds used, held and known; memory byte-seconds; energy."""

    sm_s: float = 0.0
    held_s: float = 0.0
    known_s: float = 0.0
    memory_byte_s: float = 0.0
    memory_known_s: float = 0.0
    peak_memory_bytes: int | None = None
    joules: float | None = None

    def add(self, more: UsageAmounts, part: float = 1.0) -> None:
        self.sm_s += more.sm_s * part
        self.held_s += more.held_s * part
        self.known_s += more.known_s * part
        self.memory_byte_s += more.memory_byte_s * part
        self.memory_known_s += more.memory_known_s * part
        if more.peak_memory_bytes is not None:
            self.peak_memory_bytes = max(self.peak_memory_bytes or 0, more.peak_memory_bytes)
        if more.joules is not None:
            self.joules = (self.joules or 0.0) + more.joules * part


class ProcessRecord(Struct, kw_only=True, omit_defaults=True):
    """One process on one GPU.

    `ended_at`: the first sweep without it. It stays open until the next, because samples come late.
    `start_ticks` < 0: the start is unknown; the value is then minus the time (epoch seconds) at
    which the process was first seen. `minute`: use since `minute_t`.
    """

    gpu_uuid: str
    pid: int
    start_ticks: int
    first_seen_at: datetime
    last_seen_at: datetime
    ended_at: datetime | None = None
    created_at: datetime | None = None
    user: str | None = None
    uid: int | None = None
    program: str | None = None
    container: str | None = None
    job_ref: str | None = None
    job_owner: str | None = None
    owner_source: OwnerSource = OwnerSource.UNKNOWN
    source: UseSource = UseSource.UNKNOWN
    total: UsageAmounts = field(default_factory=UsageAmounts)
    minute_t: int = 0
    minute: UsageAmounts = field(default_factory=UsageAmounts)
    owed_s: float = 0.0
    # The newest reading.
    memory_bytes: int | None = None
    # Whether its row has been written or searched.
    is_stored: bool = False

    @property
    def on(self) -> On:
        return (self.gpu_uuid, self.pid)


class MinuteSums(Struct, frozen=True):
    """Use of a process in the minute that begins at `t`."""

    use: ProcessRecord
    t: int
    amounts: UsageAmounts


MINUTE = 60


class UsePolicy(Struct, frozen=True, kw_only=True):
    """`gap_s`: if two sweeps are further apart, the time between them is unknown."""

    gap_s: float = 6.0
    # A gap adds at most this, because each of its minutes becomes a row.
    longest_gap_s: float = 3600.0
    # A process on a GPU that cannot be read is assumed to be present for this time.
    silence: timedelta = timedelta(minutes=10)
    # The driver's clock and ours differ slightly from sweep to sweep.
    owed_s: float = 2.0


class ProcessUses(Struct):
    """Processes on GPUs now (`open`), and records completed since the last `taken()`."""

    policy: UsePolicy = field(default_factory=UsePolicy)
    swept_at: datetime | None = None
    open: dict[On, ProcessRecord] = field(default_factory=dict)
    meters: dict[str, EnergyMeter] = field(default_factory=dict)
    ended: list[ProcessRecord] = field(default_factory=list)
    minutes: list[MinuteSums] = field(default_factory=list)

    def take(
        self,
        now: datetime,
        gpus: Sequence[GpuReading],
        processes: Sequence[ProcessReading],
        busy_s: Mapping[On, float],
        ended: Iterable[EndedProcess] = (),
    ) -> None:
        """Add one sweep. `busy_s`: since the sweep before; if missing, `sm_pct` is used."""
        if self.swept_at is not None and now <= self.swept_at:
            # The clock was set back, so no time can be counted between the sweeps.
            self._shift_to(now)
        readable = {gpu.uuid: gpu for gpu in gpus if gpu.health is Health.OK}
        listed = [p for p in processes if p.gpu_uuid in readable]
        self._close_the_gone(now, readable.keys(), {(p.gpu_uuid, p.pid) for p in listed})
        added = {(p.gpu_uuid, p.pid): self._observe(p, now, busy_s) for p in listed}
        lasts = {(last.gpu_uuid, last.pid): last for last in ended}
        leaving = [on for on, use in self.open.items() if on not in added and on not in lasts]
        for on in (*lasts, *leaving):
            part = self._leave(on, lasts.get(on), now) if on[0] in readable else None
            if part is not None:
                added[on] = part
        self._share_energy(now, readable, added)
        for on, (use, amounts) in added.items():
            self._add(use, amounts, now)
            self.open[on] = use
        self.swept_at = now

    def note(self, now: datetime, gpus: Iterable[GpuReading]) -> None:
        """The GPUs at a sweep that did not read the processes."""
        for gpu in gpus:
            if gpu.uuid in self.meters:
                self.meters[gpu.uuid].note(now, gpu.utilization_pct)

    def taken(self) -> None:
        """The completed records have been stored."""
        self.ended.clear()
        self.minutes.clear()

    def _observe(
        self, process: ProcessReading, now: datetime, busy_s: Mapping[On, float]
    ) -> tuple[ProcessRecord, UsageAmounts]:
        use, is_new = self._use_of(process, now)
        busy = busy_s.get(use.on)
        passed = self._new_s(process, now) if is_new else _between(use.last_seen_at, now)
        gap = passed > self.policy.gap_s
        amounts = UsageAmounts(held_s=min(passed, self.policy.longest_gap_s))
        if busy is None and process.sm_pct is not None:
            busy = process.sm_pct / 100 * passed
        if busy is not None and not gap:
            amounts.known_s = passed
            amounts.sm_s = self._settle(use, busy, passed)
        if process.memory_bytes is not None:
            amounts.peak_memory_bytes = process.memory_bytes
            if not gap:
                amounts.memory_byte_s = process.memory_bytes * passed
                amounts.memory_known_s = passed
        use.memory_bytes = process.memory_bytes
        use.source = process.source
        use.last_seen_at, use.ended_at = now, None
        return use, amounts

    def _use_of(self, process: ProcessReading, now: datetime) -> tuple[ProcessRecord, bool]:
        """The open record, or a new one: the same pid with another start is another process."""
        use = self.open.get((process.gpu_uuid, process.pid))
        if use is not None and process.start_ticks not in (None, use.start_ticks):
            self._end(use, now)
            use = None
        is_new = use is None or use.ended_at is not None
        if use is None:
            use = self._revived(process) or ProcessRecord(
                gpu_uuid=process.gpu_uuid,
                pid=process.pid,
                start_ticks=_start(process, now),
                first_seen_at=now,
                last_seen_at=now,
            )
        _identify(use, process)
        return use, is_new

    def _revived(self, process: ProcessReading) -> ProcessRecord | None:
        """The record of a process that left this GPU and is not stored yet."""
        for use in self.ended:
            same = use.on == (process.gpu_uuid, process.pid)
            if same and use.start_ticks == process.start_ticks:
                self.ended.remove(use)
                use.ended_at, use.owed_s = None, 0.0
                return use
        return None

    def _new_s(self, process: ProcessReading, now: datetime) -> float:
        """Seconds that a new process has been on the GPU before this sweep, see above."""
        if self.swept_at is None or _between(self.swept_at, now) > self.policy.gap_s:
            return 0.0
        if process.created_at is not None and process.created_at > self.swept_at:
            return _between(process.created_at, now)
        return _between(self.swept_at, now) / 2

    def _settle(self, use: ProcessRecord, busy: float, passed: float) -> float:
        """Limit work to the time present; a small excess is carried to the next sweep."""
        due = busy + use.owed_s
        settled = min(due, use.total.known_s + passed - use.total.sm_s)
        use.owed_s = min(self.policy.owed_s, due - settled)
        return settled

    def _leave(
        self, on: On, last: EndedProcess | None, now: datetime
    ) -> tuple[ProcessRecord, UsageAmounts] | None:
        """Use of a process between its last sweep and its end; samples may come one sweep later."""
        use = self.open.get(on)
        busy = last.busy_s if last else 0.0
        if use is None:
            return self._came_and_went(last, now) if last else None
        if last is not None:
            use.source = last.source
        if use.ended_at is not None:
            return (use, self._late(use, busy)) if last else None
        use.ended_at = now
        passed = _between(use.last_seen_at, now)
        due = busy + use.owed_s
        excess = due - max(0.0, use.total.known_s - use.total.sm_s)
        held = min(passed, max(excess, passed / 2))
        amounts = UsageAmounts(held_s=held)
        if last is not None:
            amounts.known_s, amounts.peak_memory_bytes = held, last.peak_memory_bytes
        else:
            amounts.known_s = min(held, max(0.0, excess))
        amounts.sm_s = self._settle(use, busy, amounts.known_s)
        if use.memory_bytes is not None:
            amounts.memory_byte_s, amounts.memory_known_s = use.memory_bytes * held, held
        return use, amounts

    def _late(self, use: ProcessRecord, busy: float) -> UsageAmounts:
        """Work in the held time that was counted already, known or not."""
        excess = busy + use.owed_s - max(0.0, use.total.known_s - use.total.sm_s)
        more = min(max(0.0, excess), max(0.0, use.total.held_s - use.total.known_s))
        return UsageAmounts(sm_s=self._settle(use, busy, more), known_s=more)

    def _came_and_went(
        self, last: EndedProcess, now: datetime
    ) -> tuple[ProcessRecord, UsageAmounts] | None:
        if last.lived_s is None:
            return None
        use = ProcessRecord(
            gpu_uuid=last.gpu_uuid,
            pid=last.pid,
            start_ticks=-int(now.timestamp()),
            first_seen_at=now,
            last_seen_at=now,
            ended_at=now,
            source=last.source,
        )
        held = max(last.busy_s, last.lived_s)
        amounts = UsageAmounts(sm_s=last.busy_s, held_s=held, known_s=held)
        amounts.peak_memory_bytes = last.peak_memory_bytes
        return use, amounts

    def _share_energy(
        self,
        now: datetime,
        readable: Mapping[str, GpuReading],
        added: dict[On, tuple[ProcessRecord, UsageAmounts]],
    ) -> None:
        """Also adds those whose energy is known only now."""
        for uuid in self.meters.keys() - readable.keys():
            del self.meters[uuid]
        busy: dict[str, dict[int, float | None]] = {uuid: {} for uuid in readable}
        for (uuid, pid), (_, amounts) in added.items():
            is_known = amounts.known_s or amounts.sm_s or not amounts.held_s
            busy[uuid][pid] = amounts.sm_s if is_known else None
        for uuid, gpu in readable.items():
            meter = self.meters.setdefault(uuid, EnergyMeter())
            for pid, joules in meter.share(now, gpu, busy[uuid], self.policy.gap_s).items():
                on = (uuid, pid)
                if on not in added and on in self.open:
                    added[on] = (self.open[on], UsageAmounts())
                if on in added:
                    added[on][1].joules = joules

    def _add(self, use: ProcessRecord, amounts: UsageAmounts, now: datetime) -> None:
        """Add to the total and to each minute of the held time, in proportion to its seconds."""
        use.total.add(amounts)
        t = now.timestamp()
        minute, began = int(t) // MINUTE * MINUTE, t - amounts.held_s
        first = int(began) // MINUTE * MINUTE if use.minute_t else minute
        left = 1.0
        if first < minute:
            if first != use.minute_t:
                self._turn(use, first)
            part = (first + MINUTE - began) / amounts.held_s
            use.minute.add(amounts, part)
            left -= part
            left -= self._add_whole_minutes(use, amounts, range(first + MINUTE, minute, MINUTE))
        if use.minute_t != minute:
            self._turn(use, minute)
        use.minute.add(amounts, left)

    def _add_whole_minutes(
        self, use: ProcessRecord, amounts: UsageAmounts, minutes: range
    ) -> float:
        """Add the part of `amounts` in these minutes, none of which has a row yet."""
        if not minutes:
            return 0.0
        self._turn(use, 0)
        unseen, part = replace(amounts, peak_memory_bytes=None), MINUTE / amounts.held_s
        for minute in minutes:
            whole = UsageAmounts()
            whole.add(unseen, part)
            self.minutes.append(MinuteSums(use, minute, whole))
        return part * len(minutes)

    def _turn(self, use: ProcessRecord, minute: int) -> None:
        if use.minute_t:
            self.minutes.append(MinuteSums(use, use.minute_t, use.minute))
        use.minute_t, use.minute = minute, UsageAmounts()
        for pending in self.minutes:
            if pending.use is use and pending.t == minute:
                use.minute = pending.amounts
                self.minutes.remove(pending)
                break

    def _close_the_gone(
        self, now: datetime, readable: Iterable[str], present: Iterable[On]
    ) -> None:
        """End those that left at the last sweep, or in time that was not watched."""
        here, there = set(present), set(readable)
        for on, use in list(self.open.items()):
            away = now - use.last_seen_at
            is_over = use.ended_at is not None or away.total_seconds() > self.policy.gap_s
            if on not in here and (
                (use.gpu_uuid in there and is_over) or away > self.policy.silence
            ):
                self._end(use, now)
                del self.open[on]

    def _end(self, use: ProcessRecord, now: datetime) -> None:
        """It ended at the first sweep without it, or if that is unknown, when it was last seen."""
        gap = _between(use.last_seen_at, now) > self.policy.gap_s
        use.ended_at = use.ended_at or (use.last_seen_at if gap else now)
        self._turn(use, 0)
        self.ended.append(use)

    def _shift_to(self, now: datetime) -> None:
        self.swept_at = None
        self.meters.clear()
        for use in self.open.values():
            use.last_seen_at = now


def _between(then: datetime, now: datetime) -> float:
    return max(0.0, (now - then).total_seconds())


def _start(process: ProcessReading, now: datetime) -> int:
    return -int(now.timestamp()) if process.start_ticks is None else process.start_ticks


def _identify(use: ProcessRecord, process: ProcessReading) -> None:
    """Update the identity; known facts stay known after the process has left /proc."""
    use.created_at = process.created_at or use.created_at
    use.user = process.user or use.user
    use.uid = use.uid if process.uid is None else process.uid
    use.program = process.program or use.program
    use.container = process.container or use.container
    use.job_ref = process.job_ref or use.job_ref
    use.job_owner = process.job_owner or use.job_owner
    if process.owner_source is not OwnerSource.UNKNOWN:
        use.owner_source = process.owner_source


# Accounting state as text, with which the next sampler process continues without a gap.


VERSION = 2


class CarriedBy(Struct, frozen=True, kw_only=True):
    """The version of the code and the probe that wrote a state."""

    version: int
    probe: str


class CarriedState(CarriedBy, frozen=True, kw_only=True):
    """records: each once, first the `open` ones, then the `ended` ones; the minutes name them."""

    swept_at: datetime | None
    records: list[ProcessRecord]
    open: int
    ended: int
    minutes: list[tuple[int, int, UsageAmounts]]
    meters: dict[str, EnergyMeter]
    marks: dict[str, GpuMark]


def dumps(
    probe: str, uses: ProcessUses, marks: Mapping[str, GpuMark], is_written: bool = False
) -> str:
    """Open records, completed records that are not stored yet, and the driver's cursors."""
    ended, minutes = ([], []) if is_written else (uses.ended, uses.minutes)
    records = [*uses.open.values(), *ended]
    numbers = {id(use): number for number, use in enumerate(records)}
    state = CarriedState(
        version=VERSION,
        probe=probe,
        swept_at=uses.swept_at,
        records=records,
        open=len(uses.open),
        ended=len(ended),
        minutes=[(numbers[id(m.use)], m.t, m.amounts) for m in minutes],
        meters=uses.meters,
        marks=dict(marks),
    )
    return msgspec.json.encode(state).decode()


def loads(
    text: str, probe: str, policy: UsePolicy
) -> tuple[ProcessUses, dict[str, GpuMark]] | None:
    """None if there is no text, or if another probe or version wrote it. Raises ValueError."""
    by = CarriedBy(version=VERSION, probe=probe)
    if not text or msgspec.json.decode(text, type=CarriedBy) != by:
        return None
    state = msgspec.json.decode(text, type=CarriedState)
    records, count = state.records, state.open
    uses = ProcessUses(
        policy=policy,
        swept_at=state.swept_at,
        open={use.on: use for use in records[:count]},
        ended=records[count : count + state.ended],
        minutes=[MinuteSums(records[n], t, amounts) for n, t, amounts in state.minutes],
        meters=state.meters,
    )
    return uses, state.marks
