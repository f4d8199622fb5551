"""Buffers of the recent use of each process and group, updated by each tick of the controller."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil

from msgspec import Struct, field

from monitor.incidents.policy.usage_series import (
    HORIZON_S,
    GpuMinute,
    Series,
    SeriesOf,
    Turns,
    UsagePoint,
)

# (GPU, pid, start ticks)
Key = tuple[str, int, int | None]
NOTHING = UsagePoint(0, 0, 0, 0, 0, 0)
# A row that has more than this at its first reading belongs to an older stay.
MOST_AT_ONCE_S = 60.0
FORGET_S = 900.0
# Rows of ended processes arrive up to this long after the end, so absence is recorded this late.
ABSENCE_LAG_S = 12.0
MINUTE_S = 60.0


class Total(Struct, frozen=True):
    """The total use of a GPU by a process, up to `at` (epoch seconds)."""

    at: float
    used: UsagePoint


class ProcessPresence(Struct, frozen=True):
    """A process that is on a GPU now, and its group."""

    key: Key
    group: str
    sm_pct: float | None
    memory_bytes: int | None
    created_t: float | None = None


class UsageMinute(Struct, frozen=True):
    """Use of a process in some seconds before the first look, up to `at`."""

    key: Key
    group: str
    at: float
    used: UsagePoint


class UsagePiece(Struct, frozen=True):
    """Use of one process during the `used.held_s` seconds before `at`."""

    at: float
    used: UsagePoint


class UsageBuffers(Struct):
    """Series by process and by group. Looks further apart than `gap_s` tell nothing between.

    by_user: the series of groups by user and GPU, without jobs and unknown users, also on GPUs that
    the user has left.
    """

    gap_s: float = 15.0
    processes: dict[Key, Series] = field(default_factory=dict)
    groups: dict[str, Series] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    by_user: SeriesOf = field(default_factory=dict)
    looked_t: float | None = None
    _watched_since: float = 0.0
    _totals: dict[Key, UsagePoint] = field(default_factory=dict)
    _estimated: dict[Key, UsagePoint] = field(default_factory=dict)
    _missing: dict[Key, float] = field(default_factory=dict)
    _grouped: set[str] = field(default_factory=set)

    def recall(self, past: Iterable[UsageMinute], totals: Mapping[Key, Total]) -> None:
        """Build up what was before the first look, from rows of minutes."""
        by_minute: dict[tuple[float, str], list[UsagePiece]] = {}
        for piece in sorted(past, key=lambda piece: piece.at):
            self._series(piece.key).add(piece.at, piece.used.span_s, piece.used)
            minute = ceil(piece.at / MINUTE_S)
            by_minute.setdefault((minute, piece.group), []).append(UsagePiece(piece.at, piece.used))
        for (_, group), pieces in sorted(by_minute.items(), key=lambda item: item[0]):
            self._add_to_group(group, pieces, is_watched=False)
        self._totals = {key: total.used for key, total in totals.items()}

    def feed(
        self,
        t: float,
        present: Iterable[ProcessPresence],
        totals: Mapping[Key, Total],
        readable: Collection[str],
        gone: Iterable[ProcessPresence] = (),
    ) -> None:
        """Add one look at `t`: the differences of `totals`, and estimates without a total.

        `gone`: processes that have ended and are still in `totals`. A group without a process on
        a GPU in `readable` used nothing there.
        """
        passed = 0.0 if self.looked_t is None else t - self.looked_t
        if not 0 < passed <= self.gap_s:
            self._watched_since = t
        together: dict[str, list[UsagePiece]] = {}
        here: set[Key] = set()
        groups: set[str] = set()
        for process in present:
            here.add(process.key)
            groups.add(process.group)
            piece = self._piece(process, t, passed, totals)
            series = self._series(process.key)
            if piece.used.held_s > 0 or not series.points:
                series.add(piece.at, piece.used.span_s, piece.used)
            if piece.used.held_s > 0:
                together.setdefault(process.group, []).append(piece)
        for process in gone:
            total = totals.get(process.key)
            if process.key in here or total is None:
                continue
            piece = UsagePiece(total.at, self._since_last(process.key, total.used))
            if piece.used.held_s > 0:
                if process.key in self.processes:
                    self._series(process.key).add(piece.at, piece.used.span_s, piece.used)
                together.setdefault(process.group, []).append(piece)
        for group, pieces in together.items():
            is_readable = group.partition("|")[0] in readable
            self._add_to_group(group, pieces, is_watched=is_readable)
        if 0 < passed <= self.gap_s:
            self._note_absent(t, passed, readable, groups)
        self._forget(t, here, groups, totals)
        if self._grouped != self.groups.keys():
            self._grouped, self.by_user = set(self.groups), _by_user(self.groups)
        self.turns.note(t - ABSENCE_LAG_S, passed, self.by_user)
        self.looked_t = t

    def _piece(
        self, process: ProcessPresence, t: float, passed: float, totals: Mapping[Key, Total]
    ) -> UsagePiece:
        total = totals.get(process.key)
        if total is not None:
            return UsagePiece(total.at, self._since_last(process.key, total.used))
        if totals:
            # The accounting rows are being written: the first row of this process will contain all
            # of it.
            return UsagePiece(t, NOTHING)
        return UsagePiece(t, self._seen(process, t, passed))

    def _since_last(self, key: Key, total: UsagePoint) -> UsagePoint:
        before = self._totals.get(key)
        self._totals[key] = total
        if before is None:
            before = self._estimated.pop(key, NOTHING)
            if total.held_s > MOST_AT_ONCE_S:
                return NOTHING
        held = max(0.0, total.held_s - before.held_s)
        return UsagePoint(
            held,
            max(0.0, total.sm_s - before.sm_s),
            held,
            max(0.0, total.known_s - before.known_s),
            max(0.0, total.memory_byte_s - before.memory_byte_s),
            max(0.0, total.memory_known_s - before.memory_known_s),
        )

    def _seen(self, process: ProcessPresence, t: float, passed: float) -> UsagePoint:
        """An estimate from one reading: the value is assumed since the reading before."""
        series = self.processes.get(process.key)
        if series is None or not series.points:
            age = passed if process.created_t is None else t - process.created_t
            passed = 0.0 if process.created_t is None else max(0.0, min(age, passed))
        if passed <= 0 or passed > self.gap_s:
            return NOTHING
        pct, memory = process.sm_pct, process.memory_bytes
        used = UsagePoint(
            passed,
            0.0 if pct is None else pct / 100 * passed,
            passed,
            0.0 if pct is None else passed,
            0.0 if memory is None else memory * passed,
            0.0 if memory is None else passed,
        )
        self._estimated[process.key] = _sum(self._estimated.get(process.key, NOTHING), used)
        return used

    def _series(self, key: Key) -> Series:
        series = self.processes.get(key)
        if series is None:
            series = self.processes[key] = Series()
        return series

    def _add_to_group(self, group: str, pieces: Sequence[UsagePiece], *, is_watched: bool) -> None:
        series = self.groups.setdefault(group, Series())
        until = max(piece.at for piece in pieces)
        since = series.end if series.points else min(p.at - p.used.held_s for p in pieces)
        if until <= since:
            series.amend(merged(since, since, pieces))
            return
        is_known = is_watched and since >= self._watched_since - ABSENCE_LAG_S
        series.add(until, until - since, merged(since, until, pieces, idle_is_known=is_known))

    def _note_absent(
        self, t: float, passed: float, readable: Collection[str], there: Collection[str]
    ) -> None:
        until = t - ABSENCE_LAG_S
        for group, series in self.groups.items():
            if group in there or group.partition("|")[0] not in readable:
                continue
            span = min(passed, until - series.end)
            if span > 0:
                series.add(until, span, UsagePoint(span, 0.0, span, span, 0.0, span))

    def _forget(
        self,
        t: float,
        here: set[Key],
        groups: Collection[str],
        totals: Mapping[Key, Total],
    ) -> None:
        """Remove ended processes and unused groups.

        A GPU that cannot be read for a while changes no past value.
        """
        for key in [key for key in self.processes if key not in here]:
            if t - self._missing.setdefault(key, t) > FORGET_S:
                del self.processes[key], self._missing[key]
        for key in here & self._missing.keys():
            del self._missing[key]
        for sums in (self._totals, self._estimated):
            for key in [k for k in sums if k not in totals and k not in self.processes]:
                del sums[key]
        for group in [g for g, s in self.groups.items() if g not in groups and _is_over(s, t)]:
            del self.groups[group]


def minutes_of_movers(past: Sequence[UsageMinute], least_s: float) -> list[GpuMinute]:
    """The minutes of the GPUs of users who used several GPUs for so many seconds together.

    GPUs that one user alone kept busy for so long do not count.
    """
    by_group: dict[str, float] = {}
    for minute in past:
        by_group[minute.group] = by_group.get(minute.group, 0.0) + minute.used.sm_s
    used: dict[str, dict[str, float]] = {}
    for group, sm_s in by_group.items():
        gpu_uuid, user = _gpu_and_user(group)
        if user is not None and sm_s:
            by_gpu = used.setdefault(user, {})
            by_gpu[gpu_uuid] = by_gpu.get(gpu_uuid, 0.0) + sm_s
    gpus: set[str] = set()
    for by_gpu in used.values():
        moved = {gpu: sm_s for gpu, sm_s in by_gpu.items() if sm_s < least_s}
        if len(moved) > 1 and sum(moved.values()) >= least_s:
            gpus |= by_gpu.keys()
    return _gpu_minutes(minute for minute in past if minute.key[0] in gpus)


def _gpu_minutes(past: Iterable[UsageMinute]) -> list[GpuMinute]:
    """The minutes of all processes of a group together."""
    minutes: dict[tuple[int, str], GpuMinute] = {}
    for piece in past:
        t = int((ceil(piece.at / MINUTE_S) - 1) * MINUTE_S)
        minute = minutes.get((t, piece.group))
        if minute is None:
            gpu_uuid, user = _gpu_and_user(piece.group)
            minute = minutes[t, piece.group] = GpuMinute(t, gpu_uuid, user)
        minute.until = max(minute.until, piece.at)
        minute.sm_s = min(MINUTE_S, minute.sm_s + piece.used.sm_s)
        minute.held_s += piece.used.held_s
        minute.known_s += piece.used.known_s
    return list(minutes.values())


def _by_user(groups: Mapping[str, Series]) -> dict[str, dict[str, list[Series]]]:
    by_user: dict[str, dict[str, list[Series]]] = {}
    for group, series in groups.items():
        gpu_uuid, user = _gpu_and_user(group)
        if user is not None:
            by_user.setdefault(user, {}).setdefault(gpu_uuid, []).append(series)
    return by_user


def _gpu_and_user(group: str) -> tuple[str, str | None]:
    """The user is None for groups of jobs and of unknown users."""
    gpu_uuid, _, rest = group.partition("|")
    user, is_persons, _ = rest.partition("|")
    return gpu_uuid, user if user and is_persons else None


def _is_over(series: Series, t: float) -> bool:
    """Whether nothing was used within the horizon."""
    return series.end < t - HORIZON_S or (
        series.span_s > HORIZON_S and series.over(t - HORIZON_S).memory_byte_s == 0
    )


def merged(
    since: float, until: float, pieces: Sequence[UsagePiece], *, idle_is_known: bool = False
) -> UsagePoint:
    """The use of several processes between two instants as one, at most the capacity of the GPU.

    `idle_is_known`: time without any of the processes counts as known and unused.
    """
    span = max(0.0, until - since)
    held = _union_s([(max(since, p.at - p.used.held_s), p.at) for p in pieces])
    unknown = max(p.used.held_s - p.used.known_s for p in pieces)
    memory_unknown = max(p.used.held_s - p.used.memory_known_s for p in pieces)
    watched = span if idle_is_known else held
    return UsagePoint(
        span,
        min(sum(p.used.sm_s for p in pieces), span or held),
        held,
        max(0.0, watched - unknown),
        sum(p.used.memory_byte_s for p in pieces),
        max(0.0, watched - memory_unknown),
    )


def _union_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the intervals."""
    if len(intervals) == 1:
        begin, end = intervals[0]
        return max(0.0, end - begin)
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _sum(a: UsagePoint, b: UsagePoint) -> UsagePoint:
    return UsagePoint(
        a.span_s + b.span_s,
        a.sm_s + b.sm_s,
        a.held_s + b.held_s,
        a.known_s + b.known_s,
        a.memory_byte_s + b.memory_byte_s,
        a.memory_known_s + b.memory_known_s,
    )
