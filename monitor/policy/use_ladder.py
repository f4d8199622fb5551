"""Whose work a GPU did: the best that the driver tells of each process, rung by rung."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from monitor.policy.use_samples import UseSample, count, within_device
from monitor.use_facts import EndedProcess, GpuMark, UseSource

# A GPU that was busier than this while the driver names nobody: it does not know who.
CONTRADICTION = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was asked of the driver about one GPU. None = it has no answer to that.

    `accounts` also holds processes that have ended: known ones and such that came and went.
    """

    accounts: Mapping[int, Account] | None = None
    samples: Collection[UseSample] | None = None
    samples_source: UseSource = UseSource.PROCESS_UTILIZATION
    device_s: float | None = None


@dataclass(slots=True)
class Judged:
    """Busy seconds of each listed process of which something is known, and how that is known."""

    mark: GpuMark
    busy_s: dict[int, float] = field(default_factory=dict)
    source: dict[int, UseSource] = field(default_factory=dict)
    ended: list[EndedProcess] = field(default_factory=list)
    dropped: int = 0


def judge(
    gpu_uuid: str,
    listed: Collection[int],
    before: Collection[int],
    evidence: Evidence,
    mark: GpuMark,
    passed_s: float,
) -> Judged:
    """`listed` are there now, `before` were at the sweep that was `passed_s` ago (0: no such)."""
    judged = Judged(mark)
    gone: dict[int, float] = {}
    if evidence.accounts is not None:
        _by_accounts(judged, gone, listed, evidence.accounts, passed_s)
    if evidence.samples is None:
        judged.mark = replace(judged.mark, age_s=judged.mark.age_s + passed_s)
    else:
        _by_samples(judged, gone, listed, before, evidence, passed_s)
    if passed_s <= 0:
        return Judged(judged.mark, dropped=judged.dropped)
    if len(listed) == 1 and set(before) <= set(listed) and evidence.device_s is not None:
        (only,) = listed
        if only not in judged.busy_s:
            judged.busy_s[only] = evidence.device_s
            judged.source[only] = UseSource.DEVICE
    _stay_within_device(judged, gone, evidence, passed_s)
    judged.ended = list(_endings(gpu_uuid, judged, gone, listed, evidence))
    return judged


def is_accounted(listed: Collection[int], mark: GpuMark) -> bool:
    """Whether the running sums alone will tell all: each process was in them already."""
    return bool(listed) and all(pid in mark.accounts for pid in listed)


def _by_accounts(
    judged: Judged,
    gone: dict[int, float],
    listed: Collection[int],
    accounts: Mapping[int, Account],
    passed_s: float,
) -> None:
    bases = judged.mark.accounts
    for pid, account in accounts.items():
        base = bases.get(pid)
        same = base is not None and base[0] == account.start_us
        samples, sums = account.counters[1:]
        if base is not None and same:
            samples, sums = samples - base[1], sums - base[2]
        if samples <= 0 or sums < 0 or (pid in listed and not same):
            continue
        if pid in listed:
            judged.busy_s[pid] = min(1.0, sums / samples / 1e4) * passed_s
            judged.source[pid] = UseSource.ACCOUNTING
        elif account.samples > 0:
            # The driver tells how long it lived, so how long each of its samples stands.
            gone[pid] = sums / 1e4 * account.lived_s / account.samples
            judged.source[pid] = UseSource.ACCOUNTING
    kept = {pid: a.counters for pid, a in accounts.items() if pid in listed}
    judged.mark = replace(judged.mark, accounts=kept)


def _by_samples(
    judged: Judged,
    gone: dict[int, float],
    listed: Collection[int],
    before: Collection[int],
    evidence: Evidence,
    passed_s: float,
) -> None:
    pids = {*listed, *before}
    counted = count(evidence.samples or (), judged.mark, passed_s, pids)
    judged.mark, judged.dropped = counted.mark, judged.dropped + counted.dropped
    if not counted.is_known:
        return
    silent = not counted.busy_s and not counted.doubtful and not counted.strangers
    if silent and passed_s > 0 and (evidence.device_s or 0.0) > CONTRADICTION * passed_s:
        # Or the driver's clock was set back: then the old cursor hides all samples.
        judged.mark = replace(judged.mark, cursor_us=None)
        return
    for pid in pids - judged.source.keys() - counted.doubtful:
        if pid in listed:
            judged.busy_s[pid] = counted.busy_s.get(pid, 0.0)
            judged.source[pid] = evidence.samples_source
        elif counted.busy_s.get(pid):
            gone[pid] = counted.busy_s[pid]
            judged.source[pid] = evidence.samples_source


def _stay_within_device(
    judged: Judged, gone: dict[int, float], evidence: Evidence, passed_s: float
) -> None:
    device_s = passed_s if evidence.device_s is None else min(evidence.device_s, passed_s)
    shares, left = within_device({**judged.busy_s, **gone}, judged.mark.allowance_s, device_s)
    judged.mark = replace(judged.mark, allowance_s=left)
    for pid, seconds in shares.items():
        if pid in gone:
            gone[pid] = seconds
        else:
            judged.busy_s[pid] = seconds


def _endings(
    gpu_uuid: str,
    judged: Judged,
    gone: Mapping[int, float],
    listed: Collection[int],
    evidence: Evidence,
) -> Iterator[EndedProcess]:
    accounts = evidence.accounts or {}
    for pid, seconds in gone.items():
        account = accounts.get(pid) if judged.source[pid] is UseSource.ACCOUNTING else None
        yield EndedProcess(
            gpu_uuid=gpu_uuid,
            pid=pid,
            busy_s=seconds,
            source=judged.source[pid],
            lived_s=account.lived_s if account else None,
            peak_memory_bytes=account.peak_memory_bytes if account else None,
        )
