"""Attribute GPU time to processes by the best available driver source (fallback chain).

Attribute a GPU's energy above idle power to its processes, in proportion to their work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from monitor.facts.readings import EndedProcess, GpuMark, GpuReading, UseSource

# Busy seconds of each process, from the driver's utilisation samples since a cursor.
#
# The cursor is the greatest timestamp of the driver, in the driver's own clock. Some drivers
# report one sample per process, the mean since the cursor; others report each sample of their
# ring buffer. A process without a sample had no sample above zero.


# Values slightly above 100 are rounding; values above this are invalid.
NONSENSE_PCT = 200
# Plausibility limits of the driver's clock: relative rate, and seconds ahead of ours.
CLOCK_RATE, CLOCK_AHEAD_S = 1.5, 5.0
# Maximum unattributed work carried to the next sweep, whose samples may attribute it.
CARRY_S = 2.0


class UseSample(Struct, frozen=True):
    """One process's share of a GPU's time up to `t_us`."""

    pid: int
    t_us: int
    sm_pct: int


class SampleTotals(Struct, frozen=True):
    """Busy seconds by pid. `is_known` false: nothing is known of this time; only later times count.

    `doubtful`: pids with invalid samples only; their use is unknown, not zero. `strangers`: an
    unlisted process worked, such as one that started and ended since the sweep before.
    """

    busy_s: dict[int, float]
    mark: GpuMark
    is_known: bool = True
    doubtful: frozenset[int] = field(default_factory=frozenset)
    strangers: bool = False
    dropped: int = 0


def count(
    samples: Iterable[UseSample], mark: GpuMark, passed_s: float, pids: Collection[int]
) -> SampleTotals:
    """Sum all samples since the cursor, each for the time that it covers."""
    if mark.cursor_us is None:
        stamps = [s.t_us for s in samples if s.pid in pids and s.sm_pct <= NONSENSE_PCT]
        begun = replace(mark, cursor_us=max(stamps, default=0), age_s=0.0)
        return SampleTotals({}, begun, is_known=not stamps)
    sifted = _sift(samples, mark, mark.cursor_us, passed_s, pids)
    if sifted.jumped and not sifted.good:
        # The driver's clock has jumped: begin anew with its next timestamp.
        return SampleTotals(
            {}, replace(mark, cursor_us=None), is_known=False, dropped=sifted.dropped
        )
    period = _period(sifted.good, mark.period_us)
    busy: dict[int, float] = {}
    grid = sorted({t for _, t in sifted.good})
    for (pid, t), pct in sifted.good.items():
        covered = _covered_us(t, grid, mark.cursor_us, period, passed_s)
        busy[pid] = busy.get(pid, 0.0) + pct / 100 * covered / 1e6
    moved = sifted.newest > mark.cursor_us
    after = replace(
        mark,
        cursor_us=max(sifted.newest, mark.cursor_us),
        age_s=0.0 if moved else mark.age_s + passed_s,
        period_us=period,
    )
    return SampleTotals(
        busy,
        after,
        doubtful=frozenset(sifted.doubtful - busy.keys()),
        strangers=sifted.strangers,
        dropped=sifted.dropped,
    )


class _Sifted(Struct):
    good: dict[tuple[int, int], int] = field(default_factory=dict)
    newest: int = 0
    doubtful: set[int] = field(default_factory=set)
    dropped: int = 0
    jumped: bool = False
    strangers: bool = False


def _sift(
    samples: Iterable[UseSample],
    mark: GpuMark,
    cursor: int,
    passed_s: float,
    pids: Collection[int],
) -> _Sifted:
    """Plausible samples: known pids, new timestamps of this clock, valid percentages, each once."""
    sifted = _Sifted()
    ahead_s = (mark.age_s + passed_s) * CLOCK_RATE + CLOCK_AHEAD_S
    latest = cursor + int(ahead_s * 1e6) if cursor else None
    for sample in samples:
        jumped = latest is not None and sample.t_us > latest
        nonsense = not 0 <= sample.sm_pct <= NONSENSE_PCT
        if sample.pid in pids and not jumped and not nonsense and sample.t_us > cursor:
            key = (sample.pid, sample.t_us)
            sifted.dropped += key in sifted.good
            sifted.good[key] = min(100, sample.sm_pct)
            sifted.newest = max(sifted.newest, sample.t_us)
            continue
        sifted.dropped += 1
        sifted.jumped |= jumped and sample.pid in pids
        if nonsense and sample.pid in pids:
            sifted.doubtful.add(sample.pid)
        if latest is not None and not jumped and not nonsense:
            sifted.newest = max(sifted.newest, sample.t_us)
        real = not jumped and not nonsense and sample.t_us > cursor
        sifted.strangers |= real and sample.pid not in pids
    return sifted


def _period(good: Collection[tuple[int, int]], known_us: int | None) -> int | None:
    """The shortest time between two samples of one process; None if each has only one."""
    stamps: dict[int, list[int]] = {}
    for pid, t in good:
        stamps.setdefault(pid, []).append(t)
    steps = [b - a for times in stamps.values() for a, b in pairwise(sorted(times))]
    return min([*steps, *([known_us] if known_us else [])], default=None)


def _covered_us(t: int, grid: list[int], cursor: int, period: int | None, passed_s: float) -> float:
    """The time in µs that the sample at `t` covers."""
    if period is None:
        return t - cursor if cursor else passed_s * 1e6
    at = bisect_left(grid, t)
    before = grid[at - 1] if at else cursor
    return min(t - before, period) if before else period


def within_device(
    busy_s: Mapping[int, float], allowance_s: float, device_s: float
) -> tuple[dict[int, float], float]:
    """Scale to at most the busy time of the GPU; also return its work not attributed yet.

    Process samples arrive later than the device's own figure, so the rest is carried over.
    """
    room = allowance_s + device_s
    total_s = sum(busy_s.values())
    scale = min(1.0, room / total_s) if total_s > 0 else 0.0
    scaled = {pid: seconds * scale for pid, seconds in busy_s.items()}
    return scaled, max(0.0, min(CARRY_S, room - total_s * scale))


# If more than this share of the time is attributed to no process, the driver does not list all
# working processes.
CONTRADICTION = 0.05
# Samples of processes arrive up to this much later than the device's own utilisation.
LATE_S = 1.0


class AccountingSample(Struct, frozen=True, kw_only=True):
    """The driver's running sums for one process (`sum_pct` in hundredths of a percent)."""

    start_us: int
    samples: int
    sum_pct: int
    is_running: bool = True
    lived_s: float = 0.0
    peak_memory_bytes: int | None = None

    @property
    def counters(self) -> tuple[int, int, int]:
        return (self.start_us, self.samples, self.sum_pct)


class Evidence(Struct, frozen=True, kw_only=True):
    """Answers of the driver about one GPU. None = unsupported.

    `accounts` also holds processes that have ended: known ones and such that came and went.
    device_is_whole: the readings of the device cover the time, so its work is a limit for theirs.
    device_now: the newest of them, 0 to 1. clients: pids that compute through the MPS server.
    """

    accounts: Mapping[int, AccountingSample] | None = None
    samples: Collection[UseSample] | None = None
    samples_source: UseSource = UseSource.PROCESS_UTILIZATION
    device_s: float | None = None
    device_is_whole: bool = True
    device_now: float | None = None
    clients: Collection[int] = ()


class Attribution(Struct):
    """Busy seconds of each listed process with a known use, and their source.

    is_doubtful: processes worked that are not listed, or the work of the GPU is unexplained: the
    list may be old.
    """

    mark: GpuMark
    busy_s: dict[int, float] = field(default_factory=dict)
    source: dict[int, UseSource] = field(default_factory=dict)
    ended: list[EndedProcess] = field(default_factory=list)
    dropped: int = 0
    is_doubtful: bool = False


def judge(
    gpu_uuid: str,
    listed: Collection[int],
    before: Collection[int],
    evidence: Evidence,
    mark: GpuMark,
    passed_s: float,
) -> Attribution:
    """Attribute the `passed_s` since the last sweep (0: none). `before`: pids listed then."""
    attribution = Attribution(mark)
    gone: dict[int, float] = {}
    if evidence.accounts is not None:
        _by_accounts(attribution, gone, listed, evidence.accounts, passed_s)
    if evidence.samples is None:
        attribution.mark = replace(attribution.mark, age_s=attribution.mark.age_s + passed_s)
    else:
        _by_samples(attribution, gone, listed, before, evidence, passed_s)
    if passed_s <= 0:
        return Attribution(attribution.mark, dropped=attribution.dropped)
    if len(listed) == 1 and set(before) <= set(listed) and evidence.device_s is not None:
        (only,) = listed
        if only not in attribution.busy_s:
            attribution.busy_s[only] = evidence.device_s
            attribution.source[only] = UseSource.DEVICE
    _stay_within_device(attribution, gone, evidence, passed_s)
    attribution.ended = list(_endings(gpu_uuid, attribution, gone, evidence))
    return attribution


def is_accounted(listed: Collection[int], mark: GpuMark) -> bool:
    """Whether accounting alone covers all processes: each was accounted at the last sweep."""
    return bool(listed) and all(pid in mark.accounts for pid in listed)


def _by_accounts(
    attribution: Attribution,
    gone: dict[int, float],
    listed: Collection[int],
    accounts: Mapping[int, AccountingSample],
    passed_s: float,
) -> None:
    bases = attribution.mark.accounts
    for pid, account in accounts.items():
        base = bases.get(pid)
        same = base is not None and base[0] == account.start_us
        samples, sums = account.counters[1:]
        if base is not None and same:
            samples, sums = samples - base[1], sums - base[2]
        if samples <= 0 or sums < 0 or (pid in listed and not same):
            continue
        if pid in listed:
            attribution.busy_s[pid] = min(1.0, sums / samples / 1e4) * passed_s
            attribution.source[pid] = UseSource.ACCOUNTING
        elif account.samples > 0:
            # The driver reports the lifetime, which gives the duration of each sample.
            gone[pid] = sums / 1e4 * account.lived_s / account.samples
            attribution.source[pid] = UseSource.ACCOUNTING
    counters = {pid: a.counters for pid, a in accounts.items() if pid in listed}
    attribution.mark = replace(attribution.mark, accounts=counters)


def _by_samples(
    attribution: Attribution,
    gone: dict[int, float],
    listed: Collection[int],
    before: Collection[int],
    evidence: Evidence,
    passed_s: float,
) -> None:
    pids = {*listed, *before}
    counted = count(evidence.samples or (), attribution.mark, passed_s, pids)
    attribution.mark, attribution.dropped = counted.mark, attribution.dropped + counted.dropped
    if not counted.is_known:
        return
    attribution.is_doubtful = counted.strangers
    silent = not counted.busy_s and not counted.doubtful and not counted.strangers
    if silent and passed_s > 0 and (evidence.device_s or 0.0) > CONTRADICTION * passed_s:
        # Or the driver's clock was set back: then the old cursor hides all samples.
        attribution.mark = replace(attribution.mark, cursor_us=None)
        return
    hides_workers = _hides_workers(attribution, gone, counted, evidence, passed_s)
    hidden = _hidden_clients(attribution, counted, evidence)
    for pid in pids - attribution.source.keys() - counted.doubtful:
        is_hidden = hides_workers or pid in hidden
        if pid in listed and is_hidden and pid not in counted.busy_s:
            continue
        if pid in listed:
            attribution.busy_s[pid] = counted.busy_s.get(pid, 0.0)
            attribution.source[pid] = evidence.samples_source
        elif counted.busy_s.get(pid):
            gone[pid] = counted.busy_s[pid]
            attribution.source[pid] = evidence.samples_source


def _hidden_clients(
    attribution: Attribution, counted: SampleTotals, evidence: Evidence
) -> Collection[int]:
    """Clients of MPS whose work the driver may report as that of the server.

    A driver that has named a client names them all. Until then, work beside them may be theirs.
    """
    if any(counted.busy_s.get(pid) for pid in evidence.clients):
        attribution.mark = replace(attribution.mark, names_clients=True)
    works = any(counted.busy_s.values()) or counted.strangers
    return evidence.clients if works and not attribution.mark.names_clients else ()


def _hides_workers(
    attribution: Attribution,
    gone: Mapping[int, float],
    counted: SampleTotals,
    evidence: Evidence,
    passed_s: float,
) -> bool:
    """Whether the GPU worked more than the driver attributes to processes.

    More than samples that come late explain, or in two sweeps in a row.
    """
    attributed = sum(attribution.busy_s.values()) + sum(gone.values())
    attributed += sum(s for pid, s in counted.busy_s.items() if pid not in attribution.source)
    missing_s = (evidence.device_s or 0.0) - attributed
    is_unexplained = missing_s > CONTRADICTION * passed_s > 0
    is_unexplained &= evidence.device_is_whole and not counted.strangers
    was_unexplained = attribution.mark.is_unexplained
    attribution.mark = replace(attribution.mark, is_unexplained=is_unexplained)
    # A list that was read again since explains no more than before.
    attribution.is_doubtful |= is_unexplained and not was_unexplained
    late_s = LATE_S * (1.0 if evidence.device_now is None else evidence.device_now)
    is_late = missing_s <= late_s + CONTRADICTION * passed_s
    return is_unexplained and (was_unexplained or not is_late)


def _stay_within_device(
    attribution: Attribution, gone: dict[int, float], evidence: Evidence, passed_s: float
) -> None:
    device_s = passed_s
    if evidence.device_s is not None and evidence.device_is_whole:
        device_s = min(evidence.device_s, passed_s)
    shares, left = within_device(
        {**attribution.busy_s, **gone}, attribution.mark.allowance_s, device_s
    )
    attribution.mark = replace(attribution.mark, allowance_s=left)
    for pid, seconds in shares.items():
        if pid in gone:
            gone[pid] = seconds
        else:
            attribution.busy_s[pid] = seconds


def _endings(
    gpu_uuid: str,
    attribution: Attribution,
    gone: Mapping[int, float],
    evidence: Evidence,
) -> Iterator[EndedProcess]:
    accounts = evidence.accounts or {}
    for pid, seconds in gone.items():
        account = accounts.get(pid) if attribution.source[pid] is UseSource.ACCOUNTING else None
        yield EndedProcess(
            gpu_uuid=gpu_uuid,
            pid=pid,
            busy_s=seconds,
            source=attribution.source[pid],
            lived_s=account.lived_s if account else None,
            peak_memory_bytes=account.peak_memory_bytes if account else None,
        )


# Power counts as idle power after this time at rest, because it falls slowly after work.
REST_S = 6.0
# Idle power is this quantile of the newest readings, so one wrong reading does not change it.
READINGS, QUANTILE = 16, 0.25


# Work that processes are given more than this much later is not theirs.
LATE_ENERGY_S = 1.0


class EnergyMeter(Struct, omit_defaults=True):
    """One GPU's energy from sweep to sweep.

    `idle_w`: its idle power; `rest_w`: the newest power readings at rest; `rest_s`: how long it has
    been at rest, `rest_j`: its energy in that time. `device_s`: its work since the last sweep, up
    to `noted_at`. `late_s`, `late_j`: work of the last sweep that no process has been given yet,
    and its energy, because samples of processes arrive later than the counter. The energy may be
    below 0, because the counter is not read exactly when the sweep begins. `paid`: the work of each
    process in the last sweep.
    """

    at: datetime | None = None
    counter_mj: int | None = None
    power_w: float | None = None
    idle_w: float | None = None
    rest_w: list[float] = field(default_factory=list)
    rest_s: float = 0.0
    rest_j: float = 0.0
    device_s: float = 0.0
    noted_at: datetime | None = None
    late_s: float = 0.0
    late_j: float = 0.0
    paid: dict[int, float] = field(default_factory=dict)

    def note(self, now: datetime, utilization_pct: float | None) -> None:
        """Add a reading of the GPU's utilisation, which covers the time since the one before."""
        passed = (now - self.noted_at).total_seconds() if self.noted_at else 0.0
        self.device_s += (utilization_pct or 0.0) / 100 * max(0.0, passed)
        self.noted_at = now

    def share(
        self, now: datetime, gpu: GpuReading, busy_s: Mapping[int, float | None], gap_s: float
    ) -> dict[int, float | None]:
        """Joules by pid since the sweep before; None = unknown. `busy_s`: work by pid.

        Also contains processes of the sweep before, when the GPU has come to rest.
        """
        self.note(now, gpu.utilization_pct)
        device_s, self.device_s = self.device_s, 0.0
        passed = (now - self.at).total_seconds() if self.at else 0.0
        spent = self._spent(gpu, passed) if 0 < passed <= gap_s else None
        self.at, self.counter_mj, self.power_w = now, gpu.energy_mj, gpu.power_w
        if spent is None:
            self.late_s, self.late_j, self.paid = 0.0, 0.0, {}
            return dict.fromkeys(busy_s)
        self._learn_idle(gpu, busy_s, spent, passed)
        work = {pid: busy for pid, busy in busy_s.items() if busy is not None}
        device_s = min(device_s, passed)
        if self.idle_w is None:
            # Until the GPU was seen idle, the energy of all working time is divided.
            above = spent * min(1.0, max(sum(work.values()), device_s) / passed)
        else:
            above = spent - self.idle_w * passed
        if device_s > 0 or any(work.values()):
            joules = self._divide(above, device_s, work)
        else:
            joules = self._settle(above, is_known=len(work) == len(busy_s))
        return dict.fromkeys(busy_s) | dict.fromkeys(work, 0.0) | joules

    def _spent(self, gpu: GpuReading, passed: float) -> float | None:
        """Energy by the counter; without one, or if it went backwards, power × time."""
        if self.counter_mj is not None and gpu.energy_mj is not None:
            joules = (gpu.energy_mj - self.counter_mj) / 1000
            if joules >= 0:
                return joules
        if self.power_w is None or gpu.power_w is None:
            return None
        return (self.power_w + gpu.power_w) / 2 * passed

    def _learn_idle(
        self, gpu: GpuReading, busy_s: Mapping[int, float | None], spent: float, passed: float
    ) -> None:
        if gpu.utilization_pct != 0 or any(busy != 0 for busy in busy_s.values()):
            self.rest_s = self.rest_j = 0.0
            return
        self.rest_s += passed
        self.rest_j += spent
        # Without a power reading, the mean over a long rest smooths late readings.
        reading = self.rest_j / self.rest_s if gpu.power_w is None else gpu.power_w
        if reading <= 0 or (self.rest_s < REST_S and self.idle_w is not None):
            return
        self.rest_w = [*self.rest_w, round(reading, 1)][-READINGS:]
        self.idle_w = sorted(self.rest_w)[int(QUANTILE * (len(self.rest_w) - 1))]

    def _divide(self, above: float, device_s: float, work: Mapping[int, float]) -> dict[int, float]:
        """Divide by work: first the late work, then that of this sweep.

        Work that no process is given takes its part, too.
        """
        total = sum(work.values())
        of_late = min(total, self.late_s)
        due = self.late_j * (of_late / self.late_s if self.late_s > 0 else total > 0)
        new = total - of_late
        worked = max(device_s, new)
        part = above * new / worked if worked > 0 else 0.0
        due += part
        self.late_s, self.late_j = worked - new, above - part
        if due < 0 or total <= 0:
            self.late_j += due
            due = 0.0
        self.paid = {pid: busy for pid, busy in work.items() if busy > 0}
        return {pid: due * busy / total for pid, busy in self.paid.items()}

    def _settle(self, above: float, *, is_known: bool) -> dict[int, float]:
        """At rest, the rest of the energy goes to those who worked last.

        Without them it is energy of work that begins: the counter is read later than the sweep.
        """
        paid, due = self.paid, self.late_j + above
        is_theirs = bool(paid) and is_known and self.late_s <= LATE_ENERGY_S and due > 0
        self.late_s, self.late_j, self.paid = 0.0, 0.0 if paid else above, {}
        total = sum(paid.values())
        return {pid: due * busy / total for pid, busy in paid.items()} if is_theirs else {}
