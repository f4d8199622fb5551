"""Recent use of GPUs as cumulative sums, so that any window is a difference of two points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from operator import itemgetter

from msgspec import Struct, field

# Cumulative sums at an instant: seconds used, held and known; memory byte-seconds; their known
# seconds.
Point = tuple[float, float, float, float, float, float]

HORIZON_S = 2 * 3600.0
# The newest points are kept at full resolution, older ones this far apart.
FINE, COARSE_S = 40, 30.0
_time = itemgetter(0)


class UsagePoint(Struct, frozen=True):
    """Sums over a period of `span_s` seconds."""

    span_s: float
    sm_s: float
    held_s: float
    known_s: float
    memory_byte_s: float
    memory_known_s: float

    @property
    def pct(self) -> float | None:
        """The mean share of the GPU's time while it was known.

        Samples of the driver arrive late, so a short period may contain more than its own time.
        """
        known_s = self.known_s
        if known_s <= 0:
            return None
        return 100 * self.sm_s / known_s if self.sm_s < known_s else 100.0

    @property
    def coverage(self) -> float:
        """The known part (0..1) of the whole period.

        Time in which the process was absent is not known.
        """
        return min(1.0, self.known_s / self.span_s) if self.span_s > 0 else 0.0

    @property
    def memory_coverage(self) -> float:
        """The part (0..1) of the whole period in which the memory was known."""
        return min(1.0, self.memory_known_s / self.span_s) if self.span_s > 0 else 0.0

    @property
    def memory_bytes(self) -> float | None:
        """The mean while it was known; None: never."""
        return self.memory_byte_s / self.memory_known_s if self.memory_known_s > 0 else None


class Series(Struct):
    """The points of one process, or of all processes of a user or job on one GPU."""

    points: list[Point] = field(default_factory=list)

    @property
    def begin(self) -> float:
        return self.points[0][0] if self.points else 0.0

    @property
    def end(self) -> float:
        return self.points[-1][0] if self.points else 0.0

    @property
    def span_s(self) -> float:
        return self.end - self.begin

    def add(self, t: float, passed: float, more: UsagePoint) -> None:
        """Add the use in the `passed` seconds up to `t`."""
        points = self.points
        if not points:
            points.append((t - passed, 0.0, 0.0, 0.0, 0.0, 0.0))
        last = points[-1]
        if t <= last[0]:
            return
        points.append(
            (
                t,
                last[1] + more.sm_s,
                last[2] + more.held_s,
                last[3] + more.known_s,
                last[4] + more.memory_byte_s,
                last[5] + more.memory_known_s,
            )
        )
        self._thin(t)

    def amend(self, more: UsagePoint) -> None:
        """Add use that was reported late to the newest sums, without changing their time."""
        if self.points:
            t, sm_s, held_s, known_s, memory_byte_s, memory_known_s = self.points[-1]
            self.points[-1] = (
                t,
                sm_s + more.sm_s,
                held_s,
                known_s,
                memory_byte_s + more.memory_byte_s,
                memory_known_s,
            )

    def over(self, since: float, until: float | None = None) -> UsagePoint:
        """The sums between two instants, as far as there are points."""
        points = self.points
        if not points:
            return UsagePoint(0, 0, 0, 0, 0, 0)
        low, high = points[0], points[-1]
        if since > low[0]:
            low = self._at(since)
        else:
            since = low[0]
        if until is not None and until < high[0]:
            high = self._at(until)
        else:
            until = high[0]
        return _between(low, high, max(0.0, until - since))

    def last(self, seconds: float) -> UsagePoint:
        return self.over(self.end - seconds)

    def segments(self, since: float = 0.0) -> Iterator[tuple[float, UsagePoint]]:
        """(begin, sums) between each two consecutive points, oldest first."""
        points = self.points
        first = max(0, bisect_right(points, since, key=_time) - 1)
        for a, b in zip(points[first:], points[first + 1 :], strict=False):
            yield a[0], _between(a, b, b[0] - a[0])

    def _at(self, t: float) -> Point:
        """The sums at an instant, by linear interpolation."""
        points = self.points
        place = bisect_right(points, t, key=_time)
        if place <= 0:
            return points[0]
        if place >= len(points):
            return points[-1]
        a, b = points[place - 1], points[place]
        part = (t - a[0]) / (b[0] - a[0])
        if part == 0:
            return a
        values = [x + (y - x) * part for x, y in zip(a, b, strict=True)]
        return (values[0], values[1], values[2], values[3], values[4], values[5])

    def _thin(self, now: float) -> None:
        points = self.points
        place = len(points) - FINE
        if place > 1 and points[place][0] - points[place - 2][0] <= COARSE_S:
            del points[place - 1]
        if points[0][0] < now - HORIZON_S - 10 * COARSE_S:
            keep = bisect_right(points, now - HORIZON_S, key=_time) - 1
            del points[: max(0, keep)]


def _between(low: Point, high: Point, span_s: float) -> UsagePoint:
    """The difference of two points. The rules call it often, so it is written out."""
    return UsagePoint(
        span_s,
        high[1] - low[1],
        high[2] - low[2],
        high[3] - low[3],
        high[4] - low[4],
        high[5] - low[5],
    )


def above_since(
    series: Series, pct: float, floor_pct: float, coverage: float
) -> tuple[float, UsagePoint] | None:
    """Since when the mean has been above `pct`: (begin, sums since then). None: it is not above.

    The begin is the oldest segment of at least `floor_pct` since which the mean is above `pct`. So
    a short pause does not end it, and a burst does not extend it to earlier times. At least
    `coverage` (0..1) of the whole time must be known.
    """
    for begin, used in series.segments():
        here = used.pct
        if here is None or here < floor_pct:
            continue
        since = series.over(begin)
        if since.pct is not None and since.pct > pct and since.coverage >= coverage:
            return begin, since
    return None


def quiet_since(series: Series, pct: float, coverage: float) -> float | None:
    """Since when the mean has been below `pct`; None: it is not below."""
    for begin, used in series.segments():
        here = used.pct
        if here is None or here >= pct:
            continue
        since = series.over(begin)
        if since.pct is not None and since.pct < pct and since.coverage >= coverage:
            return begin
    return None


# How busy users keep one GPU at a time, by whatever GPUs they use in turn.
#
# In each short step, the GPUs of a user are ranked by their use. The series of rank 0 is the use
# of the busiest GPU of each step, if it has most of the user's use: about 100 % for a user who
# moves between GPUs, and for one who stays, but not for use of several GPUs at the same time.
# Rank `n` is the same without the `n` busiest GPUs. If any `n` GPUs are left out, one of the rest
# is at least as busy as rank `n`.


# Length of the steps in which past minutes are divided: shorter than a stay on one GPU.
STEP_S = 5
MINUTE_S = 60
# Minimum part of a step's use on one GPU: less is use of several at the same time.
ONE_AT_A_TIME = 0.6
# Users who keep more GPUs than this busy are reported for each of them.
MOST_RANKS = 4
# A GPU with more use by others than this part tells nothing about the steps of one user.
ALONE = 0.05
# A minute with less use than this does not count as use of the GPU.
LEAST_S = 1.0

# Series by user and GPU.
SeriesOf = Mapping[str, Mapping[str, Sequence[Series]]]
# {GPU: {number of the step since the epoch: utilisation}}
Steps = Mapping[str, Mapping[int, float]]


class GpuMinute(Struct):
    """Use of a GPU from `t`, the begin of a minute, to `until`: seconds used, held and known.

    user: None for jobs and unknown users. Held and known are sums of all processes.
    """

    t: int
    gpu_uuid: str
    user: str | None
    until: float = 0.0
    sm_s: float = 0.0
    held_s: float = 0.0
    known_s: float = 0.0


class Turns(Struct):
    """By user of several GPUs: the series of each rank."""

    ranks: dict[str, list[Series]] = field(default_factory=dict)

    def note(self, until: float, passed: float, series_of: SeriesOf) -> None:
        """Add the time up to `until`; the first step of a user has at most `passed` seconds."""
        for user in [user for user in self.ranks if len(series_of.get(user, ())) < 2]:
            del self.ranks[user]
        for user, by_gpu in series_of.items():
            if len(by_gpu) < 2:
                continue
            ranks = self.ranks.get(user)
            if ranks is None:
                ranks = self.ranks[user] = _before(by_gpu)
            end = min(until, max(parts[0].end for parts in by_gpu.values()))
            since = ranks[0].end if ranks else end - passed
            if end <= since:
                continue
            used_s: list[float] = []
            known_s = span_s = 0.0
            for parts in by_gpu.values():
                sm_s = 0.0
                for part in parts:
                    if part.begin < end:
                        used = part.over(since, end)
                        sm_s += used.sm_s
                        known_s += used.known_s
                        span_s += used.span_s
                used_s.append(sm_s)
            _add(ranks, end, end - since, used_s, known_s / span_s if span_s else 0.0)

    def recall(self, minutes: Iterable[GpuMinute], steps: Steps) -> None:
        """Build up past minutes. `steps`: utilisation of the GPUs of `several_gpus`."""
        totals: dict[tuple[int, str], float] = {}
        by_user: dict[tuple[int, str], list[GpuMinute]] = {}
        for minute in minutes:
            place = (minute.t, minute.gpu_uuid)
            totals[place] = totals.get(place, 0.0) + minute.sm_s
            if minute.user is not None:
                by_user.setdefault((minute.t, minute.user), []).append(minute)
        gpus: dict[str, set[str]] = {}
        for (_, user), mine in by_user.items():
            gpus.setdefault(user, set()).update(minute.gpu_uuid for minute in mine)
        for (t, user), mine in sorted(by_user.items(), key=lambda item: item[0]):
            if len(gpus[user]) < 2:
                continue
            until = max(minute.until for minute in mine)
            held_s = sum(minute.held_s for minute in mine)
            known = sum(minute.known_s for minute in mine) / max(held_s, until - t)
            ranks = self.ranks.setdefault(user, [])
            if not any(minute.gpu_uuid in steps for minute in mine):
                _add(ranks, until, until - t, [minute.sm_s for minute in mine], known)
                continue
            ends = [min(until, float(end)) for end in range(t + STEP_S, t + MINUTE_S + 1, STEP_S)]
            lengths = [max(0.0, end - t - n * STEP_S) for n, end in enumerate(ends)]
            divided = [_divided(m, totals[t, m.gpu_uuid], lengths, steps) for m in mine]
            for end, length, used in zip(ends, lengths, zip(*divided, strict=True), strict=True):
                _add(ranks, end, length, used, known)


def several_gpus(minutes: Iterable[GpuMinute], busy_pct: float) -> set[str]:
    """The GPUs that users may have kept so busy in turn in a minute, but none of them alone."""
    least_s = busy_pct / 100 * MINUTE_S
    used: dict[tuple[int, str], dict[str, float]] = {}
    for minute in minutes:
        if minute.user is not None and LEAST_S <= minute.sm_s < least_s:
            used.setdefault((minute.t, minute.user), {})[minute.gpu_uuid] = minute.sm_s
    return {gpu for of_user in used.values() if sum(of_user.values()) >= least_s for gpu in of_user}


def _before(by_gpu: Mapping[str, Sequence[Series]]) -> list[Series]:
    """The ranks of a user until the use of a second GPU."""
    parts = sorted(
        (part for parts in by_gpu.values() for part in parts if part.points),
        key=lambda part: part.begin,
    )
    if len(parts) < 2:
        return []
    points = [point for point in parts[0].points if point[0] <= parts[1].begin]
    return [Series([(p[0], p[1], p[2], p[3], 0.0, 0.0) for p in points])]


def _divided(
    minute: GpuMinute, total_s: float, lengths: Sequence[float], steps: Steps
) -> list[float]:
    """The use in each step of the minute, in proportion to the GPU's utilisation.

    Evenly, if that is unknown or others used the GPU too.
    """
    sm_s, first = minute.sm_s, minute.t // STEP_S
    by_step = steps.get(minute.gpu_uuid, {})
    parts = [by_step.get(first + n, 0.0) if length else 0.0 for n, length in enumerate(lengths)]
    if total_s - sm_s > ALONE * sm_s or not sum(parts):
        parts = list(lengths)
    whole = sum(parts)
    return [sm_s * part / whole if whole else 0.0 for part in parts]


def _add(
    ranks: list[Series], until: float, passed: float, used_s: Sequence[float], known: float
) -> None:
    """Add a step to the series of each rank; a new rank was unused before."""
    known_s = passed * min(1.0, known)
    ordered = sorted(used_s, reverse=True)
    while len(ranks) < min(MOST_RANKS, len(ordered)):
        ranks.append(_unused_like(ranks))
    for rank, series in enumerate(ranks):
        sm_s = min(passed, ordered[rank]) if rank < len(ordered) else 0.0
        if sm_s < ONE_AT_A_TIME * sum(ordered[rank:]):
            sm_s = 0.0
        series.add(until, passed, UsagePoint(passed, sm_s, passed, known_s, 0.0, 0.0))


def _unused_like(ranks: Sequence[Series]) -> Series:
    if not ranks:
        return Series()
    return Series([(p[0], 0.0, p[2], p[3], 0.0, 0.0) for p in ranks[0].points])


# (GPU, pid, start ticks)
Key = tuple[str, int, int | None]
NOTHING = UsagePoint(0, 0, 0, 0, 0, 0)
# A row that has more than this at its first reading belongs to an older stay.
MOST_AT_ONCE_S = 60.0
FORGET_S = 900.0
# Rows of ended processes arrive up to this long after the end, so absence is recorded this late.
ABSENCE_LAG_S = 12.0


class UsageUntil(Struct, frozen=True):
    """Use of a GPU by a process up to `at` (epoch seconds): in all, or since the last look.

    Of a look, it is that of the `used.held_s` seconds before `at`.
    """

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

    def recall(self, past: Iterable[UsageMinute], totals: Mapping[Key, UsageUntil]) -> None:
        """Build up what was before the first look, from rows of minutes."""
        by_minute: dict[tuple[float, str], list[UsageUntil]] = {}
        for piece in sorted(past, key=lambda piece: piece.at):
            self._series(piece.key).add(piece.at, piece.used.span_s, piece.used)
            minute = ceil(piece.at / MINUTE_S)
            by_minute.setdefault((minute, piece.group), []).append(UsageUntil(piece.at, piece.used))
        for (_, group), pieces in sorted(by_minute.items(), key=lambda item: item[0]):
            self._add_to_group(group, pieces, is_watched=False)
        self._totals = {key: total.used for key, total in totals.items()}

    def feed(
        self,
        t: float,
        present: Iterable[ProcessPresence],
        totals: Mapping[Key, UsageUntil],
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
        together: dict[str, list[UsageUntil]] = {}
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
            piece = UsageUntil(total.at, self._since_last(process.key, total.used))
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
        self, process: ProcessPresence, t: float, passed: float, totals: Mapping[Key, UsageUntil]
    ) -> UsageUntil:
        total = totals.get(process.key)
        if total is not None:
            return UsageUntil(total.at, self._since_last(process.key, total.used))
        if totals:
            # The accounting rows are being written: the first row of this process will contain all
            # of it.
            return UsageUntil(t, NOTHING)
        return UsageUntil(t, self._seen(process, t, passed))

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

    def _add_to_group(self, group: str, pieces: Sequence[UsageUntil], *, is_watched: bool) -> None:
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
        totals: Mapping[Key, UsageUntil],
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
        t = (ceil(piece.at / MINUTE_S) - 1) * MINUTE_S
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
    since: float, until: float, pieces: Sequence[UsageUntil], *, idle_is_known: bool = False
) -> UsagePoint:
    """The use of several processes between two instants as one, at most the capacity of the GPU.

    `idle_is_known`: time without any of the processes counts as known and unused.
    """
    span = max(0.0, until - since)
    held = union_s([(max(since, p.at - p.used.held_s), p.at) for p in pieces])
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


def union_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the intervals."""
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
