"""What each process used of a GPU, added up sweep by sweep.

A process is held for the time between two sweeps that both saw it. A gap of more than `gap_s`
adds `gap_s` to what it held and nothing to what is known: nobody looked. Energy above what the GPU
takes when idle goes to those who worked, by their share; idle power goes to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from monitor.policy.energy import EnergyMeter
from monitor.policy.uses import Amounts, Minute, On, Use
from monitor.readings import GpuReading, Health, ProcessReading
from monitor.use_facts import EndedProcess

MINUTE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePolicy:
    """`gap_s`: sweeps further apart than this leave the time between them unknown."""

    gap_s: float = 6.0
    # A process on a GPU that can't be read is taken to be there for so long.
    silence: timedelta = timedelta(minutes=10)
    # The driver's clock and ours differ a little from sweep to sweep.
    owed_s: float = 2.0


@dataclass(slots=True)
class ProcessUses:
    """All that are on GPUs now (`open`), and what has been completed since it was last taken."""

    policy: UsePolicy = field(default_factory=UsePolicy)
    swept_at: datetime | None = None
    open: dict[On, Use] = field(default_factory=dict)
    meters: dict[str, EnergyMeter] = field(default_factory=dict)
    ended: list[Use] = field(default_factory=list)
    minutes: list[Minute] = field(default_factory=list)

    def take(
        self,
        now: datetime,
        gpus: Sequence[GpuReading],
        processes: Sequence[ProcessReading],
        busy_s: Mapping[On, float],
        ended: Iterable[EndedProcess] = (),
    ) -> None:
        """One sweep. `busy_s` since the sweep before; where it is missing, sm_pct tells."""
        if self.swept_at is not None and now <= self.swept_at:
            # The clock was set back: there is no time between the sweeps that could be counted.
            self._shift_to(now)
        readable = {gpu.uuid: gpu for gpu in gpus if gpu.health is Health.OK}
        seen = [p for p in processes if p.gpu_uuid in readable]
        added = {(p.gpu_uuid, p.pid): self._observe(p, now, busy_s) for p in seen}
        for last in ended:
            self._finish(last, now)
        self._share_energy(now, readable, added)
        for on, (use, amounts) in added.items():
            self._add(use, amounts, now)
            self.open[on] = use
        self._close_the_gone(now, readable.keys(), added.keys())
        self.swept_at = now

    def taken(self) -> None:
        """What was completed is written down."""
        self.ended.clear()
        self.minutes.clear()

    def _observe(
        self, process: ProcessReading, now: datetime, busy_s: Mapping[On, float]
    ) -> tuple[Use, Amounts]:
        use, is_new = self._use_of(process, now)
        busy = busy_s.get(use.on)
        passed = self._new_s(process, now, busy) if is_new else _between(use.last_seen_at, now)
        gap = passed > self.policy.gap_s
        amounts = Amounts(held_s=min(passed, self.policy.gap_s))
        if busy is None and process.sm_pct is not None:
            busy = process.sm_pct / 100 * passed
        if busy is not None and not gap:
            amounts.known_s = passed
            amounts.sm_s = self._settle(use, busy, passed, may_owe=not is_new)
        if process.memory_bytes is not None:
            amounts.peak_memory_bytes = process.memory_bytes
            if not gap:
                amounts.memory_byte_s = process.memory_bytes * passed
                amounts.memory_known_s = passed
        use.source = process.source
        use.last_seen_at = now
        return use, amounts

    def _use_of(self, process: ProcessReading, now: datetime) -> tuple[Use, bool]:
        """The use that goes on, or a new one: the same pid with another start is another."""
        use = self.open.get((process.gpu_uuid, process.pid))
        if use is not None and process.start_ticks not in (None, use.start_ticks):
            self._end(use, now)
            use = None
        is_new = use is None
        if use is None:
            use = self._revived(process) or Use(
                gpu_uuid=process.gpu_uuid,
                pid=process.pid,
                start_ticks=_start(process, now),
                first_seen_at=now,
                last_seen_at=now,
            )
        _identify(use, process)
        return use, is_new

    def _revived(self, process: ProcessReading) -> Use | None:
        """It had left this GPU, and that is not written down yet."""
        for use in self.ended:
            same = use.on == (process.gpu_uuid, process.pid)
            if same and use.start_ticks == process.start_ticks:
                self.ended.remove(use)
                use.ended_at, use.owed_s = None, 0.0
                return use
        return None

    def _new_s(self, process: ProcessReading, now: datetime, busy: float | None) -> float:
        """How long it has been there, of which the sweep before saw nothing.

        Its whole life, when that is shorter; else no longer than the driver says that it worked.
        """
        if self.swept_at is None or _between(self.swept_at, now) > self.policy.gap_s:
            return 0.0
        if process.created_at is not None and process.created_at > self.swept_at:
            return _between(process.created_at, now)
        return min(busy or 0.0, _between(self.swept_at, now))

    def _settle(self, use: Use, busy: float, passed: float, may_owe: bool) -> float:
        """No process worked longer than it was there; a little more may be told a sweep late."""
        wanted = busy + use.owed_s
        given = min(wanted, use.total.known_s + passed - use.total.sm_s)
        use.owed_s = min(self.policy.owed_s, wanted - given) if may_owe else 0.0
        return given

    def _finish(self, last: EndedProcess, now: datetime) -> None:
        """What a process did between the last sweep that saw it and its end."""
        use = self.open.get((last.gpu_uuid, last.pid))
        busy, held = last.busy_s, last.busy_s
        if use is None:
            if last.lived_s is None:
                return
            held = max(held, last.lived_s)
            use = Use(
                gpu_uuid=last.gpu_uuid,
                pid=last.pid,
                start_ticks=-int(now.timestamp()),
                first_seen_at=now,
                last_seen_at=now,
            )
            self.open[use.on] = use
        elif _between(use.last_seen_at, now) > self.policy.gap_s:
            return
        use.source = last.source
        amounts = Amounts(sm_s=busy, held_s=held, known_s=held)
        amounts.peak_memory_bytes = last.peak_memory_bytes
        self._add(use, amounts, now)

    def _share_energy(
        self,
        now: datetime,
        readable: Mapping[str, GpuReading],
        added: Mapping[On, tuple[Use, Amounts]],
    ) -> None:
        for uuid in self.meters.keys() - readable.keys():
            del self.meters[uuid]
        for uuid, gpu in readable.items():
            mine = {on: amounts for on, (_, amounts) in added.items() if on[0] == uuid}
            busy = {on: a.sm_s if a.known_s or not a.held_s else None for on, a in mine.items()}
            meter = self.meters.setdefault(uuid, EnergyMeter())
            for on, joules in meter.share(now, gpu, busy, self.policy.gap_s).items():
                mine[on].joules = joules

    def _add(self, use: Use, amounts: Amounts, now: datetime) -> None:
        """To the whole and to its minutes; what spans two of them is divided by time."""
        use.total.add(amounts)
        minute = int(now.timestamp()) // MINUTE * MINUTE
        early = 0.0
        if use.minute_t != minute:
            over = now.timestamp() - minute
            if use.minute_t and amounts.held_s > over:
                early = 1 - over / amounts.held_s
                use.minute.add(amounts, early)
            self._turn(use, minute)
        use.minute.add(amounts, 1 - early)

    def _turn(self, use: Use, minute: int) -> None:
        if use.minute_t:
            self.minutes.append(Minute(use, use.minute_t, use.minute))
        use.minute_t, use.minute = minute, Amounts()
        for pending in self.minutes:
            if pending.use is use and pending.t == minute:
                use.minute = pending.amounts
                self.minutes.remove(pending)
                break

    def _close_the_gone(
        self, now: datetime, readable: Iterable[str], present: Iterable[On]
    ) -> None:
        here, there = set(present), set(readable)
        for on, use in list(self.open.items()):
            silent = now - use.last_seen_at > self.policy.silence
            if on not in here and (use.gpu_uuid in there or silent):
                self._end(use, now)
                del self.open[on]

    def _end(self, use: Use, now: datetime) -> None:
        gap = _between(use.last_seen_at, now) > self.policy.gap_s
        use.ended_at = use.last_seen_at if gap else now
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


def _identify(use: Use, process: ProcessReading) -> None:
    """What is known of it stays known, also when it has left our /proc."""
    use.created_at = process.created_at or use.created_at
    use.user = process.user or use.user
    use.uid = use.uid if process.uid is None else process.uid
    use.program = process.program or use.program
    use.container = process.container or use.container
    use.job_ref = process.job_ref or use.job_ref
    use.job_owner = process.job_owner or use.job_owner
