"""Policy: divides the time of GPUs among their holders, and adds it up.

Each instant of a GPU belongs to those who hold it, in equal parts. The time that it computed
counts as used by the processes that computed. The rest of the held time counts for those who
used less than their part, in proportion to what they left unused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime as Moment
from datetime import tzinfo
from typing import NamedTuple

from msgspec import Struct, field

from reports.figures.facts import Occupancy
from reports.figures.policy.jobs import Waiting

Span = tuple[float, float]


class Holder(Struct):
    """One owner on the GPU in a step: `spans` with processes, `claims` of jobs; seconds.

    seen_s: of the held seconds, those in which the process was read, whatever is known of its use.
    None: not known.
    """

    spans: list[Span] = field(default_factory=list)
    claims: list[Span] = field(default_factory=list)
    held_s: float = 0.0
    known_s: float = 0.0
    sm_s: float = 0.0
    seen_s: float | None = None

    def without(self, seconds: float) -> float:
        """The part of the held time, 0 to 1, that is not among these seconds of it."""
        return 1 - min(1.0, seconds / self.held_s) if self.held_s > 0 else 0.0


class Split(Struct):
    """Seconds of one owner, or of a whole GPU: see GpuHours."""

    used: float = 0.0
    idle: float = 0.0
    empty: float = 0.0
    unknown: float = 0.0
    free: float = 0.0

    @property
    def held(self) -> float:
        return self.used + self.idle + self.empty + self.unknown

    def add(self, other: Split) -> None:
        self.used += other.used
        self.idle += other.idle
        self.empty += other.empty
        self.unknown += other.unknown
        self.free += other.free


def split(
    length: float, watched: float, busy_s: float | None, holders: dict[str | None, Holder]
) -> tuple[Split, dict[str | None, Split]]:
    """The parts of `length` seconds of a GPU, in all and by owner.

    watched: seconds with readings; all other time is unknown. busy_s: seconds in which the device
    computed. What it did without a visible process is unknown, not free.
    """
    known_s = max((h.known_s for h in holders.values()), default=0.0)
    watched = min(length, max(watched, known_s))
    parts = presence(holders)
    blind = _blind(length, watched, holders, parts)
    seen = {
        owner: _Seen(
            min(holder.sm_s, watched),
            max(0.0, parts[owner][0] - blind[owner][0]),
            max(0.0, parts[owner][1] - blind[owner][1]),
            _dark(holder, parts[owner][0], blind[owner][0]),
        )
        for owner, holder in holders.items()
    }
    held = min(watched, sum(part.process + part.claim for part in seen.values()))
    owners = _owners(held, seen)
    free = watched - held
    hidden = min(free, max(0.0, (busy_s or 0.0) - held)) if busy_s is not None else 0.0
    hidden = hidden if hidden > 0.01 * length else 0.0
    whole = Split(unknown=length - watched + hidden, free=free - hidden)
    for owner, part in owners.items():
        whole.used += part.used
        whole.idle += part.idle
        whole.empty += part.empty
        whole.unknown += part.unknown
        part.unknown += sum(blind[owner])
    return whole, owners


def _blind(
    length: float,
    watched: float,
    holders: dict[str | None, Holder],
    parts: dict[str | None, tuple[float, float]],
) -> dict[str | None, tuple[float, float]]:
    """The unwatched seconds of each owner, with a process and with only a claim.

    The sums of a step do not tell when it was unwatched, but `seen_s` tells how much of that was in
    the time of a process. Without it, unknown use counts as unwatched; if all use is unknown, the
    process gets an even part, as a claim does.
    """
    missing, process = length - watched, sum(p for p, _ in parts.values())
    rest = length - process
    if missing <= 0:
        return dict.fromkeys(holders, (0.0, 0.0))
    unseen = {}
    for owner, holder in holders.items():
        seen_s = holder.known_s if holder.seen_s is None else holder.seen_s
        part = holder.without(seen_s) if seen_s > 0 else missing / length
        unseen[owner] = parts[owner][0] * part
    total = sum(unseen.values())
    # No more than was unwatched, and no less than what the time without processes leaves.
    fitting = min(missing, process, max(total, missing - rest))
    if total > fitting:
        unseen = {owner: seconds * fitting / total for owner, seconds in unseen.items()}
    elif total < fitting:
        more = min(1.0, (fitting - total) / (process - total))
        unseen = {o: seconds + (parts[o][0] - seconds) * more for o, seconds in unseen.items()}
    outside = (missing - fitting) / rest if rest > 0 else 0.0
    return {owner: (unseen[owner], claim * outside) for owner, (_, claim) in parts.items()}


def _dark(holder: Holder, process: float, blind: float) -> float:
    """The watched seconds with a process of unknown use."""
    if holder.seen_s is None:
        return max(0.0, process * holder.without(holder.known_s) - blind)
    return process * (holder.without(holder.known_s) - holder.without(holder.seen_s))


class _Seen(NamedTuple):
    """Watched seconds of one owner; dark: of those with a process, those with unknown use."""

    used: float
    process: float
    claim: float
    dark: float


def _owners(held: float, seen: dict[str | None, _Seen]) -> dict[str | None, Split]:
    """The parts of the `held` watched seconds by owner."""
    total = sum(min(part.used, held) for part in seen.values())
    fit = min(1.0, held / total) if total > 0 else 1.0
    used = {owner: min(part.used, held) * fit for owner, part in seen.items()}
    total *= fit
    obscure = sum(part.dark for part in seen.values())
    # Rounding may put the sum a hair above the whole.
    unknown = min(obscure, max(0.0, held - total))
    scale = unknown / obscure if unknown else 0.0
    lit = {o: max(0.0, part.process - part.dark - used[o]) for o, part in seen.items()}
    left = sum(lit.values()) + sum(part.claim for part in seen.values())
    share = max(0.0, held - total - unknown) / left if left else 0.0
    return {
        owner: Split(used[owner], lit[owner] * share, part.claim * share, part.dark * scale)
        for owner, part in seen.items()
    }


def presence(holders: dict[str | None, Holder]) -> dict[str | None, tuple[float, float]]:
    """Seconds that belong to each owner, with a process there and with only a claim."""
    if len(holders) == 1:
        ((owner, holder),) = holders.items()
        process = covered(holder.spans)
        return {owner: (process, covered([*holder.spans, *holder.claims]) - process)}
    marks: list[tuple[float, int, int, str | None]] = []
    for owner, holder in holders.items():
        for kind, spans in enumerate((holder.spans, holder.claims)):
            for begin, end in spans:
                if end > begin:
                    marks += ((begin, 1, kind, owner), (end, -1, kind, owner))
    return _swept(sorted(marks, key=lambda mark: mark[0]), holders)


def _swept(
    marks: Sequence[tuple[float, int, int, str | None]], owners: Iterable[str | None]
) -> dict[str | None, tuple[float, float]]:
    there = {owner: [0, 0] for owner in owners}
    sums = {owner: [0.0, 0.0] for owner in there}
    before = marks[0][0] if marks else 0.0
    for at, change, kind, owner in marks:
        if at > before:
            present = [name for name, (p, c) in there.items() if p or c]
            for name in present:
                sums[name][0 if there[name][0] else 1] += (at - before) / len(present)
            before = at
        there[owner][kind] += change
    return {owner: (p, c) for owner, (p, c) in sums.items()}


def covered(spans: Iterable[Span]) -> float:
    """The length of the union of the spans."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        begin = max(begin, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total


class UseFact(Struct, frozen=True):
    """One process on one GPU. first_t: epoch seconds; owner None: unknown."""

    id: int
    gpu: str
    host: str
    owner: str | None
    first_t: float
    pid: int
    start_ticks: int
    program: str
    container: str
    uid: int | None
    job_ref: str
    is_job: bool


# Not frozen: there are hundreds of thousands of them, and a frozen one takes twice as long to make.
class UsePart(Struct):
    """Sums of a process in one step. memory_known_s: seconds with measured memory."""

    use: UseFact
    sm_s: float
    held_s: float
    known_s: float
    memory_byte_s: float
    memory_known_s: float
    joules: float | None


class GpuPart(Struct, frozen=True):
    """Sums of a GPU in one step. busy_s None: the device's use is unknown."""

    seen_s: float
    busy_s: float | None
    energy_j: float
    power_known_s: float


class ClaimPart(Struct, frozen=True):
    owner: str
    begin: float
    end: float


NOT_SEEN = GpuPart(0.0, None, 0.0, 0.0)


class Step(Struct):
    """Known facts about one step of at most an hour."""

    begin: int
    end: int
    gpus: Mapping[str, GpuPart]
    uses: Mapping[str, list[UsePart]]
    claims: Mapping[str, list[ClaimPart]]
    waiting: Waiting

    @property
    def seconds(self) -> int:
        return self.end - self.begin


class OwnerSums(Struct):
    """Seconds, byte-seconds and joules of an owner. joules None: never measured."""

    split: Split = field(default_factory=Split)
    held_s: float = 0.0
    known_s: float = 0.0
    memory_byte_s: float = 0.0
    memory_known_s: float = 0.0
    joules: float | None = None
    idle_j: float = 0.0


class Cell(Struct):
    """Seconds of one owner in one bin of the timeline; `used` and `unknown` are parts of `held`."""

    held: float = 0.0
    used: float = 0.0
    unknown: float = 0.0

    def add(self, other: Cell) -> None:
        self.held += other.held
        self.used += other.used
        self.unknown += other.unknown


class GpuSums(Struct):
    split: Split = field(default_factory=Split)
    energy_j: float = 0.0
    power_known_s: float = 0.0
    joules: float = 0.0
    bins: dict[int, dict[str | None, Cell]] = field(default_factory=dict)


class ProcessSums(Struct):
    """One process on all its GPUs, outside of jobs. high_s, sustained_s: seconds above the levels,
    each instant counted once; harmful_*: the parts of them in which the owner was above the
    entitlement and a job waited that could have run there. waited: the wait caused by the owner, by
    the begin of these steps."""

    use: UseFact
    gpus: dict[str, float] = field(default_factory=dict)
    sm_s: float = 0.0
    held_s: float = 0.0
    known_s: float = 0.0
    high_s: float = 0.0
    sustained_s: float = 0.0
    harmful_high_s: float = 0.0
    harmful_sustained_s: float = 0.0
    waited: dict[int, float] = field(default_factory=dict)


class Ledger:
    """Sums of all steps so far. `bin_s`: width of the bins of the timeline.

    gpus: {UUID: bytes of memory, 0 = unknown}. entitled_gpus: GPUs that quotas grant a user.
    """

    def __init__(
        self,
        gpus: Mapping[str, int],
        zone: tzinfo,
        bin_s: int,
        high_pct: float,
        sustained_pct: float,
        entitled_gpus: Callable[[str], float],
    ) -> None:
        self.owners: dict[str | None, OwnerSums] = {}
        self.gpus: dict[str, GpuSums] = {uuid: GpuSums() for uuid in gpus}
        self.processes: dict[tuple[str, int, int], ProcessSums] = {}
        # Used and known seconds by weekday and hour.
        self.week = [[[0.0, 0.0] for _ in range(24)] for _ in range(7)]
        # Job-seconds of each owner: by the begin of a bin, in all, and while held GPUs stood idle.
        self.waits: dict[int, dict[str, float]] = {}
        self.waited_s: dict[str, float] = {}
        self.waited_idle_s: dict[str, float] = {}
        # Of each owner: waits of others while above the entitlement.
        self.caused_s: dict[str, float] = {}
        self._memory, self._entitled_gpus = dict(gpus), entitled_gpus
        self._zone, self._bin_s = zone, bin_s
        self._high, self._sustained = high_pct / 100, sustained_pct / 100

    def add(self, step: Step) -> None:
        whole = Split()
        held: dict[str, dict[str, float]] = {}
        for uuid, sums in self.gpus.items():
            of_gpu, by_owner = self._gpu(uuid, sums, step)
            whole.add(of_gpu)
            for owner, its in by_owner.items():
                if owner and its.held:
                    held.setdefault(owner, {})[uuid] = its.held
        self._hour_of_week(step, whole)
        caused = self._caused(step, held)
        self._processes(step, caused)
        self._waits(step, whole)

    def _caused(self, step: Step, held: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """The wait that each owner causes in this step; also added to `caused_s`.

        That is the time that jobs of others would not have waited if the owner had held only the
        entitlement: each GPU would have taken one waiting job at a time. So it is at most what the
        owner held above the entitlement. That jobs further back would have started earlier too is
        not counted.
        """
        caused: dict[str, float] = {}
        for owner, gpus in held.items():
            above = sum(gpus.values()) - self._entitled_gpus(owner) * step.seconds
            if above > 0 and (waits := min(above, self._waits_for(step.waiting, owner, gpus))):
                caused[owner] = waits
                self.caused_s[owner] = self.caused_s.get(owner, 0.0) + waits
        return caused

    def _waits_for(self, waiting: Waiting, owner: str, gpus: Mapping[str, float]) -> float:
        """Job-seconds of others that could have passed on these GPUs, held for so many seconds."""
        by_gpu: dict[str, float] = {}
        for waits, seconds in waiting.for_gpus.items():
            if self._could_run(waits, owner, gpus):
                by_gpu[waits[1]] = by_gpu.get(waits[1], 0.0) + seconds
        return sum(min(s, gpus[gpu]) if gpu else s for gpu, s in by_gpu.items())

    def _could_run(self, waits: tuple[str, str, int], owner: str, gpus: Iterable[str]) -> bool:
        """Whether the waiting job, of another owner, could run on one of the GPUs."""
        waiting_owner, only, memory = waits
        return waiting_owner != owner and any(
            only in ("", gpu) and (not self._memory[gpu] or memory <= self._memory[gpu])
            for gpu in gpus
        )

    def _gpu(self, uuid: str, sums: GpuSums, step: Step) -> tuple[Split, dict[str | None, Split]]:
        reading = step.gpus.get(uuid, NOT_SEEN)
        parts = step.uses.get(uuid, [])
        holders = _holders(parts, step.claims.get(uuid, ()), step)
        whole, by_owner = split(step.seconds, reading.seen_s, reading.busy_s, holders)
        sums.split.add(whole)
        sums.energy_j += reading.energy_j
        sums.power_known_s += reading.power_known_s
        for part in parts:
            self._part(part)
            sums.joules += part.joules or 0.0
        for owner, its in by_owner.items():
            self.owners.setdefault(owner, OwnerSums()).split.add(its)
        self._idle_energy(reading, parts, whole, by_owner)
        if by_owner:
            self._bin(sums, step, by_owner)
        return whole, by_owner

    def _part(self, part: UsePart) -> None:
        sums = self.owners.setdefault(part.use.owner, OwnerSums())
        sums.held_s += part.held_s
        sums.known_s += part.known_s
        sums.memory_byte_s += part.memory_byte_s
        sums.memory_known_s += part.memory_known_s
        if part.joules is not None:
            sums.joules = (sums.joules or 0.0) + part.joules

    def _idle_energy(
        self,
        reading: GpuPart,
        parts: list[UsePart],
        whole: Split,
        by_owner: Mapping[str | None, Split],
    ) -> None:
        """Energy that no process is charged for, by the idle time that each owner holds."""
        rest = reading.energy_j - sum(part.joules or 0.0 for part in parts)
        idle = whole.idle + whole.empty + whole.free
        if rest <= 0 or idle <= 0:
            return
        for owner, its in by_owner.items():
            self.owners[owner].idle_j += rest * (its.idle + its.empty) / idle

    def _bin(self, sums: GpuSums, step: Step, by_owner: Mapping[str | None, Split]) -> None:
        begin = step.begin - step.begin % self._bin_s
        there = sums.bins.setdefault(begin, {})
        for owner, its in by_owner.items():
            cell = there.setdefault(owner, Cell())
            cell.add(Cell(its.held, its.used, its.unknown))

    def _hour_of_week(self, step: Step, whole: Split) -> None:
        local = Moment.fromtimestamp(step.begin, self._zone)
        cell = self.week[local.weekday()][local.hour]
        cell[0] += whole.used
        cell[1] += whole.used + whole.idle + whole.empty + whole.free

    def _processes(self, step: Step, caused: Mapping[str, float]) -> None:
        """Work of processes outside of jobs in this step, each process once for all its GPUs.

        caused: the wait that each owner causes in it.
        """
        parts_by_process: dict[tuple[str, int, int], list[UsePart]] = {}
        for parts in step.uses.values():
            for part in parts:
                use = part.use
                if not use.is_job and part.sm_s > 0:
                    parts_by_process.setdefault((use.host, use.pid, use.start_ticks), []).append(
                        part
                    )
        for key, parts in parts_by_process.items():
            self._process(key, parts, step, caused.get(parts[0].use.owner or "", 0.0))

    def _process(
        self, key: tuple[str, int, int], parts: list[UsePart], step: Step, caused_s: float
    ) -> None:
        sums = self.processes.get(key)
        if sums is None:
            sums = self.processes[key] = ProcessSums(parts[0].use)
        high = sustained = 0.0
        for part in parts:
            gpu, sm_s, known_s = part.use.gpu, part.sm_s, part.known_s
            sums.gpus[gpu] = sums.gpus.get(gpu, 0.0) + sm_s
            sums.sm_s += sm_s
            sums.held_s += part.held_s
            sums.known_s += known_s
            if sm_s > self._sustained * known_s:
                sustained = max(sustained, known_s)
                high = max(high, known_s) if sm_s > self._high * known_s else high
        sums.high_s += high
        sums.sustained_s += sustained
        owner, gpus = parts[0].use.owner or "", [part.use.gpu for part in parts]
        if (
            sustained
            and caused_s
            and any(self._could_run(waits, owner, gpus) for waits in step.waiting.for_gpus)
        ):
            sums.harmful_high_s += high
            sums.harmful_sustained_s += sustained
            sums.waited[step.begin] = caused_s

    def _waits(self, step: Step, whole: Split) -> None:
        unused = min(1.0, (whole.idle + whole.empty) / step.seconds)
        for owner, seconds in step.waiting.by_owner.items():
            cell = self.waits.setdefault(step.begin - step.begin % self._bin_s, {})
            cell[owner] = cell.get(owner, 0.0) + seconds
            self.waited_s[owner] = self.waited_s.get(owner, 0.0) + seconds
            idle_s = self.waited_idle_s.get(owner, 0.0)
            self.waited_idle_s[owner] = idle_s + seconds * unused


def _holders(
    parts: Collection[UsePart], claims: Iterable[ClaimPart], step: Step
) -> dict[str | None, Holder]:
    holders: dict[str | None, Holder] = {}
    # Where the driver reports memory, it is read whenever the process is.
    readable = {part.use.owner for part in parts if part.memory_known_s}
    length = float(step.seconds)
    for part in parts:
        holder = holders.setdefault(part.use.owner, Holder())
        held = min(length, part.held_s)
        begin = min(max(0.0, part.use.first_t - step.begin), length - held)
        holder.spans.append((begin, begin + held))
        holder.held_s += held
        holder.known_s += min(part.known_s, held)
        holder.sm_s += part.sm_s
        if part.use.owner in readable:
            seen_s = min(max(part.known_s, part.memory_known_s), held)
            holder.seen_s = (holder.seen_s or 0.0) + seen_s
    for claim in claims:
        holder = holders.setdefault(claim.owner, Holder())
        begin, end = max(0.0, claim.begin - step.begin), min(length, claim.end - step.begin)
        if end > begin:
            holder.claims.append((begin, end))
    return holders


# The main user of a GPU over time, and how much of the held time was used.


# A bin in which less of the time was held stays blank.
LEAST_HELD = 0.05
IDLE_PCT = 5


class Run(Struct):
    """Neighbouring bins that look the same. kind: None: the use is unknown; else whether idle."""

    since: int
    until: int
    owner: str | None
    kind: bool | None
    sums: Cell

    def occupancy(self, least_known: float) -> Occupancy:
        pct = used_pct(self.sums, least_known)
        return Occupancy(since=self.since, until=self.until, user=self.owner, used_pct=pct)


def spans(gpu: GpuSums, bin_s: int, least_known: float) -> tuple[Occupancy, ...]:
    """The user who held most of the GPU in each bin; equal neighbours are one span.

    least_known: the part (0..1) of the held time whose use must be known.
    """
    runs: list[Run] = []
    for begin in sorted(gpu.bins):
        cells = gpu.bins[begin]
        owner = max(cells, key=lambda name: cells[name].held)
        sums = Cell()
        for cell in cells.values():
            sums.add(cell)
        if sums.held < LEAST_HELD * bin_s:
            continue
        pct = used_pct(sums, least_known)
        kind = None if pct is None else pct < IDLE_PCT
        last = runs[-1] if runs else None
        if last and (last.until, last.owner, last.kind) == (begin, owner, kind):
            last.until = begin + bin_s
            last.sums.add(sums)
        else:
            runs.append(Run(begin, begin + bin_s, owner, kind, sums))
    return tuple(run.occupancy(least_known) for run in runs)


def used_pct(sums: Cell, least_known: float) -> float | None:
    """Of the held time whose use is known. None: too little of it is known."""
    known = sums.held - sums.unknown
    if known <= 0 or known < least_known * sums.held:
        return None
    return 100 * min(1.0, sums.used / known)
