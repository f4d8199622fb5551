"""Each GPU of a snapshot as the dashboard shows it: its row, and the detail that opens below.

Equal cards have the same HTML structure. Figures that change each second are not compared: they
travel as values, and the browser writes them into the page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import GpuTask
from monitor.facts.formats import GIB
from monitor.facts.gpus import Condition, GpuState
from monitor.facts.incidents import NONE, Badge, Badges
from monitor.facts.readings import (
    GPU_FIELDS,
    DiskReading,
    GpuReading,
    HostReading,
    OwnerReading,
    ProcessReading,
    Snapshot,
)
from monitor.gpus.policy import changes
from monitor.gpus.policy.changes import UseSplit

ROWS_ON_CARD = 5
OWNERS_ON_ROW = 3

# State -> (word, shape of its badge)
STATES: dict[GpuState, tuple[str, str]] = {
    GpuState.IDLE: ("idle", "idle"),
    GpuState.BOOTING_SCRIPT: ("starting a job", "busy"),
    GpuState.BOOTING_LLM: ("starting a model", "busy"),
    GpuState.SCRIPT_BUSY: ("running a job", "busy"),
    GpuState.LLM_READY: ("model ready", "busy"),
    GpuState.LLM_BUSY: ("model busy", "busy"),
    GpuState.COOLING: ("releasing memory", "waiting"),
    GpuState.EXTERNAL: ("outside the queue", "busy"),
    GpuState.THROTTLED: ("throttled", "warning"),
    GpuState.PAUSED: ("paused", "waiting"),
    GpuState.FAILING: ("failing", "failing"),
    GpuState.LOST: ("lost", "failing"),
}
# Shorter words for rows.
SHORT_WORDS = {
    GpuState.BOOTING_SCRIPT: "starting",
    GpuState.BOOTING_LLM: "starting",
    GpuState.SCRIPT_BUSY: "job",
    GpuState.LLM_READY: "model",
    GpuState.LLM_BUSY: "model",
    GpuState.COOLING: "releasing",
    GpuState.EXTERNAL: "in use",
}
TROUBLE = {GpuState.FAILING, GpuState.LOST}
# Shape of the condition's badge, for conditions that the state does not show
AILING = {Condition.THROTTLED: "warning", Condition.FAILING: "failing"}

Values = tuple[float | None, ...]
METERS = tuple((figure, figure.meter) for figure in GPU_FIELDS if figure.meter)
JOBS_PCT, OTHERS_PCT = "jobs_pct", "others_pct"
# The position of each figure in the values of a GPU.
SLOTS = {name: i for i, name in enumerate([f.name for f, _ in METERS] + [JOBS_PCT, OTHERS_PCT])}
GpuTasks = Mapping[str, tuple[GpuTask, ...]]
NO_TASKS: GpuTasks = {}
TASKS_ON_CARD = 4
# Shorter idle times of a GPU that is not free are not shown.
SHOWN_IDLE = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process on a GPU without its command, the same for all viewers."""

    key: str
    pid: int
    owner: str | None
    program: str | None
    job_ref: str | None
    badge: Badge | None
    # Of the owner, if it submitted the job.
    agent: str
    memory_bytes: int | None = field(compare=False)
    sm_pct: float | None = field(compare=False)

    @property
    def values(self) -> Values:
        return (in_gib(self.memory_bytes), round_whole(self.sm_pct))


class LiveFigure(Struct, frozen=True):
    """A figure as templates show it. `slot`: its position in the values of the GPU.

    top: the end of its bar; `after`: the text behind the number.
    """

    label: str
    value: float | None
    slot: int
    digits: int = 0
    top: float | None = 100
    after: str = " %"
    word: str = ""
    in_row: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU and its processes."""

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
    tops: tuple[float | None, ...]
    rows: tuple[ProcessRow, ...]
    more: int
    orphaned_gib: int
    owners: tuple[tuple[str | None, int], ...]
    guest: OwnerReading | None
    incident: Badge | None
    tasks: tuple[GpuTask, ...]
    # Since when it has been idle by use although it is not free.
    unused_since: datetime | None
    reading: GpuReading = field(compare=False)
    split: UseSplit = field(compare=False)
    # Contact with its host is lost, so this is its last reading.
    is_silent: bool = False

    @property
    def element_id(self) -> str:
        return f"gpu-{self.uuid}"

    @property
    def model(self) -> str:
        """The name without the vendor and without "Simulated"."""
        return self.name.removeprefix("NVIDIA ").removeprefix("Simulated ")

    @property
    def word(self) -> str:
        if self.is_silent:
            return "no contact"
        return STATES[self.state][0] if self.state else "unknown"

    @property
    def short_word(self) -> str:
        if self.is_silent or self.state is None:
            return self.word
        return SHORT_WORDS.get(self.state, self.word)

    @property
    def shape(self) -> str:
        return STATES[self.state][1] if self.state and not self.is_silent else "unknown"

    @property
    def serves(self) -> bool:
        """Whether a model on it is ready, or answers a request."""
        return self.state in (GpuState.LLM_READY, GpuState.LLM_BUSY) and not self.is_silent

    @property
    def trouble(self) -> bool:
        return self.state in TROUBLE or self.ailing is not None

    @property
    def ailing(self) -> str | None:
        """The shape of the condition's badge. None: the state shows it, or it is good."""
        if self.state in TROUBLE or self.condition is None:
            return None
        return AILING.get(self.condition)

    @property
    def works_on(self) -> bool:
        """Whether processes use it although it accepts no new jobs."""
        refuses = self.state in (GpuState.THROTTLED, GpuState.PAUSED)
        return refuses and bool(self.rows) and not self.is_silent

    @property
    def is_condition_in_state(self) -> bool:
        """Whether state and condition have the same word."""
        return self.state is GpuState.THROTTLED

    @property
    def needs_attention(self) -> bool:
        """Whether it is in trouble, or an incident on it does harm."""
        return self.trouble or self.is_silent or bool(self.incident and self.incident.is_warning)

    @property
    def is_free(self) -> bool:
        """Whether it is idle and accepts jobs."""
        is_closed = self.closed or self.guest or self.trouble or self.is_silent
        return self.state is GpuState.IDLE and not is_closed

    @property
    def lost(self) -> bool:
        return self.state is GpuState.LOST

    @property
    def first_owners(self) -> tuple[tuple[str | None, int], ...]:
        return self.owners[:OWNERS_ON_ROW]

    @property
    def further_owners(self) -> tuple[tuple[str | None, int], ...]:
        return self.owners[OWNERS_ON_ROW:]

    @property
    def values(self) -> Values:
        """By SLOTS."""
        return (
            *(figure.shown(figure.of(self.reading)) for figure, _ in METERS),
            round_whole(self.split.jobs_pct),
            round_whole(self.split.others_pct),
        )

    @property
    def figures(self) -> Mapping[str, LiveFigure]:
        """The values by name."""
        values = self.values
        by_name = {
            figure.name: LiveFigure(
                label=figure.label,
                value=values[slot],
                slot=slot,
                digits=figure.digits,
                top=figure.shown(top),
                after=f" / {figure.text(top)}"
                if isinstance(meter.top, str)
                else f" {figure.unit_shown}",
                word=meter.word,
                in_row=meter.in_row,
            )
            for slot, ((figure, meter), top) in enumerate(zip(METERS, self.tops, strict=True))
        }
        for name, label in ((JOBS_PCT, "Jobs"), (OTHERS_PCT, "other use")):
            by_name[name] = LiveFigure(label, values[SLOTS[name]], SLOTS[name])
        return by_name

    @property
    def meters(self) -> list[LiveFigure]:
        """The figures with a bar on the page of the GPU."""
        return list(self.figures.values())[: len(METERS)]


def cards(
    snapshots: Iterable[Snapshot],
    badges: Badges = NONE,
    tasks: GpuTasks = NO_TASKS,
    silent: Collection[str] = (),
) -> list[Card]:
    """A card per GPU, by host and index.

    silent: hosts without contact.
    """
    all_cards = []
    agents = agents_of(tasks)
    for snapshot in snapshots:
        on: dict[str, list[ProcessRow]] = {}
        for process in snapshot.processes:
            row = process_row(process, badges, agents.get(process.job_ref or "", ""))
            on.setdefault(process.gpu_uuid, []).append(row)
        splits = changes.by_gpu(snapshot)
        all_cards += [
            _card(g, snapshot, on.get(g.uuid, []), splits[g.uuid], badges, tasks.get(g.uuid, ()))
            for g in snapshot.gpus
        ]
    if silent:
        all_cards = [dataclasses.replace(card, is_silent=card.host in silent) for card in all_cards]
    return sorted(all_cards, key=lambda card: (card.host, card.index))


def agents_of(tasks: GpuTasks) -> Mapping[str, str]:
    """The agent of each job on a GPU that an agent submitted."""
    return {task.job_ref: task.agent for on_gpu in tasks.values() for task in on_gpu if task.agent}


def process_row(process: ProcessReading, badges: Badges = NONE, agent: str = "") -> ProcessRow:
    return ProcessRow(
        key=process.key,
        pid=process.pid,
        owner=process.job_owner or process.user,
        program=process.program,
        job_ref=process.job_ref,
        badge=badges.processes.get((process.gpu_uuid, process.pid)),
        agent=agent,
        memory_bytes=process.memory_bytes,
        sm_pct=process.sm_pct,
    )


def round_whole(value: float | None) -> float | None:
    return None if value is None else round(value)


def round_sig3(value: float | None) -> float | None:
    """Rounded to three significant digits."""
    return None if value is None else float(f"{value:.3g}")


def in_gib(value: float | None) -> float | None:
    return None if value is None else round_sig3(value / GIB)


def _card(
    gpu: GpuReading,
    snapshot: Snapshot,
    rows: list[ProcessRow],
    split: UseSplit,
    badges: Badges,
    tasks: tuple[GpuTask, ...],
) -> Card:
    rows.sort(key=_biggest_first)
    # A single further row needs no more space than the line that counts the others.
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
        tops=tuple(meter.top_of(gpu) for _, meter in METERS),
        rows=tuple(shown),
        more=len(rows) - len(shown),
        orphaned_gib=round((gpu.orphaned_bytes or 0) / GIB),
        owners=_owners(rows),
        guest=_guest(gpu, snapshot),
        incident=badges.gpus.get(gpu.uuid),
        tasks=tuple(_task_shown(task, snapshot) for task in tasks[:TASKS_ON_CARD]),
        reading=gpu,
        split=split,
        unused_since=_unused_since(gpu, snapshot.at),
    )


def _unused_since(gpu: GpuReading, now: datetime) -> datetime | None:
    """Since when a GPU that is not free has been idle; None: not for long enough to show it."""
    since = gpu.idle_since
    is_long = since is not None and now - since >= SHOWN_IDLE
    return since if is_long and gpu.state is not GpuState.IDLE else None


def _task_shown(task: GpuTask, snapshot: Snapshot) -> GpuTask:
    """With a whole percentage: a card is drawn again only when it shows something else."""
    percent = task.percent
    numbers = sorted(gpu.index for gpu in snapshot.gpus if gpu.uuid in task.paired)
    progress = None if percent is None else percent / 100
    return replace(task, progress=progress, paired_with=tuple(numbers))


def _reason(gpu: GpuReading, snapshot: Snapshot) -> str | None:
    """The reason for the condition, or the notes on a GPU that still works."""
    notes = (a.text for h in snapshot.health if h.gpu_uuid == gpu.uuid for a in h.ailments)
    return gpu.condition_reason or " ".join(notes) or None


def _guest(gpu: GpuReading, snapshot: Snapshot) -> OwnerReading | None:
    guest = snapshot.guest(gpu.uuid)
    return None if guest is None else replace(guest, residents=())


def _biggest_first(row: ProcessRow) -> tuple[int, int]:
    """By whole GiB, so that processes of similar size keep their order."""
    return -((row.memory_bytes or 0) // GIB), row.pid


def _owners(rows: Sequence[ProcessRow]) -> tuple[tuple[str | None, int], ...]:
    counts: dict[str | None, int] = {}
    for row in rows:
        counts[row.owner] = counts.get(row.owner, 0) + 1
    return tuple(counts.items())


# The dashboard's strip of host figures: CPU, memory, disk, load and pressure.


@dataclass(frozen=True, slots=True)
class HostStrip:
    """One host. All its figures travel as values."""

    name: str
    cpu_count: int | None
    cpus: float | None
    cpus_origin: str | None
    memory_origin: str | None
    memory_total_bytes: int | None
    swap_total_bytes: int | None
    disk_mount: str | None
    disk_total_bytes: int | None
    reading: HostReading = field(compare=False)
    # Contact with it is lost, so this is its last reading.
    is_silent: bool = False

    @property
    def element_id(self) -> str:
        return f"host-{self.name}"

    @property
    def is_cpu_limited(self) -> bool:
        """Whether a limit leaves fewer CPUs than the machine has."""
        return self.cpus is not None and self.cpus < (self.cpu_count or 0)

    @property
    def disk(self) -> DiskReading | None:
        return fullest(self.reading.disks)

    @property
    def memory_used_bytes(self) -> int | None:
        total, available = self.memory_total_bytes, self.reading.memory_available_bytes
        return None if total is None or available is None else total - available

    @property
    def disk_pct(self) -> float | None:
        disk = self.disk
        return disk.used_pct if disk else None

    @property
    def values(self) -> Values:
        host = self.reading
        return (
            round_whole(host.cpu_pct),
            round_sig3(host.load_1),
            in_gib(self.memory_used_bytes),
            in_gib(host.swap_used_bytes),
            round_whole(self.disk_pct),
            in_mb(host.disk_read_bps),
            in_mb(host.disk_write_bps),
            round_whole(host.pressure.cpu_some_pct),
            round_whole(host.pressure.memory_some_pct),
            round_whole(host.pressure.io_some_pct),
        )


def strips(snapshots: Iterable[Snapshot], silent: Collection[str] = ()) -> list[HostStrip]:
    """silent: hosts without contact."""
    shown = [_strip(snapshot.host) for snapshot in snapshots]
    return [
        dataclasses.replace(strip, is_silent=True) if strip.name in silent else strip
        for strip in shown
    ]


def in_mb(value: float | None) -> float | None:
    return None if value is None else round_sig3(value / 1e6)


def fullest(disks: Sequence[DiskReading]) -> DiskReading | None:
    return max((d for d in disks if d.total_bytes), key=lambda d: d.used_pct or 0.0, default=None)


def _strip(host: HostReading) -> HostStrip:
    disk = fullest(host.disks)
    return HostStrip(
        name=host.name,
        cpu_count=host.cpu_count,
        cpus=host.limits.cpus,
        cpus_origin=host.limits.cpus_origin,
        memory_origin=host.limits.memory_origin,
        memory_total_bytes=host.memory_total_bytes,
        swap_total_bytes=host.swap_total_bytes,
        disk_mount=disk.mount if disk else None,
        disk_total_bytes=disk.total_bytes if disk else None,
        reading=host,
    )
