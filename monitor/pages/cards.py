"""What the dashboard shows of a snapshot: cards, host strips, one line of summary.

Two of them compare equal when their structure is the same; figures that move each second don't
count, because they travel as values and are written into the page in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from monitor.formats import GIB
from monitor.gpu_states import GpuState
from monitor.health import Condition
from monitor.owner_facts import OwnerReading
from monitor.pages.badges import NONE, Badge, Badges
from monitor.readings import GpuReading, ProcessReading, Snapshot

# More GPUs than this are shown a line each.
MOST_CARDS = 16
ROWS_ON_CARD = 5
OWNERS_ON_LINE = 2

# state -> (the word, the badge's shape)
STATES: dict[GpuState, tuple[str, str]] = {
    GpuState.IDLE: ("idle", "idle"),
    GpuState.BOOTING_SCRIPT: ("job starting", "busy"),
    GpuState.BOOTING_LLM: ("model starting", "busy"),
    GpuState.SCRIPT_BUSY: ("job", "busy"),
    GpuState.LLM_READY: ("model ready", "busy"),
    GpuState.LLM_BUSY: ("model at work", "busy"),
    GpuState.COOLING: ("job has ended", "waiting"),
    GpuState.EXTERNAL: ("in use", "busy"),
    GpuState.THROTTLED: ("throttled", "warning"),
    GpuState.PAUSED: ("paused", "waiting"),
    GpuState.FAILING: ("failing", "failing"),
    GpuState.LOST: ("lost", "failing"),
}
TROUBLE = {GpuState.FAILING, GpuState.LOST}
# condition -> the badge's shape, of those that a GPU's state does not tell already
AILING = {Condition.THROTTLED: "warning", Condition.FAILING: "failing"}

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process on a GPU, without its command: all viewers see the same."""

    key: str
    pid: int
    owner: str | None
    program: str | None
    job_ref: str | None
    badge: Badge | None
    memory_bytes: int | None = field(compare=False)
    sm_pct: float | None = field(compare=False)

    @property
    def values(self) -> Values:
        return (in_gib(self.memory_bytes), whole(self.sm_pct))


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU with those on it."""

    uuid: str
    index: int
    name: str
    host: str
    simulated: bool
    state: GpuState | None
    since: datetime | None
    problem: str | None
    closed: str | None
    condition: Condition | None
    reason: str | None
    memory_total_bytes: int | None
    power_limit_w: float | None
    rows: tuple[ProcessRow, ...]
    more: int
    orphaned_gib: int
    owners: tuple[tuple[str | None, int], ...]
    guest: OwnerReading | None
    hog: Badge | None
    utilization_pct: float | None = field(compare=False)
    memory_used_bytes: int | None = field(compare=False)
    power_w: float | None = field(compare=False)
    temperature_c: float | None = field(compare=False)

    @property
    def element_id(self) -> str:
        return f"gpu-{self.uuid}"

    @property
    def model(self) -> str:
        """Its name without what all have: the maker, and that it is simulated."""
        return self.name.removeprefix("NVIDIA ").removeprefix("Simulated ")

    @property
    def word(self) -> str:
        return STATES[self.state][0] if self.state else "unknown"

    @property
    def shape(self) -> str:
        return STATES[self.state][1] if self.state else "unknown"

    @property
    def trouble(self) -> bool:
        return self.state in TROUBLE or self.ailing is not None

    @property
    def ailing(self) -> str | None:
        """The shape of the badge that tells its condition, where the state does not."""
        told = self.state in TROUBLE or self.condition is None
        return None if told or self.condition is None else AILING.get(self.condition)

    @property
    def works_on(self) -> bool:
        """Whether somebody is on it although it takes no new work."""
        return self.state in (GpuState.THROTTLED, GpuState.PAUSED) and bool(self.rows)

    @property
    def tells_twice(self) -> bool:
        """Whether its state is its condition already."""
        return self.state is GpuState.THROTTLED

    @property
    def harmed(self) -> bool:
        """Somebody hogs it while others wait."""
        return self.hog is not None and self.hog.is_warning

    @property
    def lost(self) -> bool:
        return self.state is GpuState.LOST

    @property
    def first_owners(self) -> tuple[tuple[str | None, int], ...]:
        return self.owners[:OWNERS_ON_LINE]

    @property
    def further_owners(self) -> tuple[tuple[str | None, int], ...]:
        return self.owners[OWNERS_ON_LINE:]

    @property
    def values(self) -> Values:
        return (
            whole(self.utilization_pct),
            in_gib(self.memory_used_bytes),
            whole(self.power_w),
            whole(self.temperature_c),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Is everything fine? One verdict and the counts behind it."""

    shape: str
    verdict: str
    gpus: int
    busy: int
    people: int
    processes: int
    incidents: int
    harmful: bool


def cards(snapshots: Iterable[Snapshot], badges: Badges = NONE) -> list[Card]:
    """A card per GPU, trouble first, then those with a hog, then by host and index."""
    found = []
    for snapshot in snapshots:
        on: dict[str, list[ProcessRow]] = {}
        for process in snapshot.processes:
            on.setdefault(process.gpu_uuid, []).append(process_row(process, badges))
        found += [_card(g, snapshot, on.get(g.uuid, []), badges) for g in snapshot.gpus]
    return sorted(found, key=lambda c: (not c.trouble, not c.harmed, c.host, c.index))


def process_row(process: ProcessReading, badges: Badges = NONE) -> ProcessRow:
    return ProcessRow(
        key=process.key,
        pid=process.pid,
        owner=process.job_owner or process.user,
        program=process.program,
        job_ref=process.job_ref,
        badge=badges.processes.get((process.gpu_uuid, process.pid)),
        memory_bytes=process.memory_bytes,
        sm_pct=process.sm_pct,
    )


def summary(snapshots: Sequence[Snapshot], shown: Sequence[Card], badges: Badges = NONE) -> Summary:
    """The verdict on `shown`, the cards of these snapshots."""
    shape, verdict = _verdict(snapshots, shown)
    owners = {p.job_owner or p.user for s in snapshots for p in s.processes} - {None}
    return Summary(
        shape=shape,
        verdict=verdict,
        gpus=len(shown),
        busy=sum(card.shape == "busy" or card.works_on for card in shown),
        people=len(owners),
        processes=len({(s.host.name, p.pid) for s in snapshots for p in s.processes}),
        incidents=badges.open,
        harmful=badges.harmful > 0,
    )


def whole(value: float | None) -> float | None:
    return None if value is None else round(value)


def three(value: float | None) -> float | None:
    """Rounded to three significant digits, as it is shown."""
    return None if value is None else float(f"{value:.3g}")


def in_gib(value: float | None) -> float | None:
    return None if value is None else three(value / GIB)


def _card(gpu: GpuReading, snapshot: Snapshot, rows: list[ProcessRow], badges: Badges) -> Card:
    rows.sort(key=_biggest_first)
    # A single further one takes no more room than the line that would count it.
    shown = rows if len(rows) <= ROWS_ON_CARD + 1 else rows[:ROWS_ON_CARD]
    return Card(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name or "GPU",
        host=snapshot.host.name,
        simulated=snapshot.probe == "simulated",
        state=gpu.state,
        since=gpu.state_since,
        problem=gpu.problem,
        closed=gpu.closed,
        condition=gpu.condition,
        reason=_reason(gpu, snapshot),
        memory_total_bytes=gpu.memory_total_bytes,
        power_limit_w=gpu.power_limit_w,
        rows=tuple(shown),
        more=len(rows) - len(shown),
        orphaned_gib=round((gpu.orphaned_bytes or 0) / GIB),
        owners=_owners(rows),
        guest=_guest(gpu, snapshot),
        hog=badges.gpus.get(gpu.uuid),
        utilization_pct=gpu.utilization_pct,
        memory_used_bytes=gpu.memory_used_bytes,
        power_w=gpu.power_w,
        temperature_c=gpu.temperature_c,
    )


def _reason(gpu: GpuReading, snapshot: Snapshot) -> str | None:
    """Why it is in its condition, or what is worth knowing of one that works on."""
    noted = (a.text for h in snapshot.health if h.gpu_uuid == gpu.uuid for a in h.ailments)
    return gpu.condition_reason or " ".join(noted) or None


def _guest(gpu: GpuReading, snapshot: Snapshot) -> OwnerReading | None:
    there = snapshot.guest(gpu.uuid)
    return None if there is None else replace(there, residents=())


def _biggest_first(row: ProcessRow) -> tuple[int, int]:
    """By whole GiB, so that two of about the same size don't change places each second."""
    return -((row.memory_bytes or 0) // GIB), row.pid


def _owners(rows: Sequence[ProcessRow]) -> tuple[tuple[str | None, int], ...]:
    counts: dict[str | None, int] = {}
    for row in rows:
        counts[row.owner] = counts.get(row.owner, 0) + 1
    return tuple(counts.items())


def _verdict(snapshots: Sequence[Snapshot], shown: Sequence[Card]) -> tuple[str, str]:
    if not snapshots:
        return "waiting", "Waiting for the first reading"
    for state, word in ((GpuState.LOST, "lost"), (GpuState.FAILING, "failing")):
        named = [card for card in shown if card.state is state]
        if len(named) == 1:
            return "failing", f"GPU {named[0].index} is {word}"
        if named:
            return "failing", f"{len(named)} GPUs are {word}"
    if any(snapshot.problem for snapshot in snapshots):
        return "warning", "The GPUs can't be read"
    ailing = [card for card in shown if card.ailing]
    if len(ailing) == 1:
        return ailing[0].ailing or "warning", f"GPU {ailing[0].index} is {ailing[0].condition}"
    if ailing:
        return "warning", f"{len(ailing)} GPUs get no new work"
    if not shown:
        return "idle", "This machine shows no GPU"
    return "ok", "The GPU answers" if len(shown) == 1 else f"All {len(shown)} GPUs answer"
