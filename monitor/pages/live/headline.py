"""The dashboard's headline: the worst of GPU health, incidents, and idle GPUs while jobs wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from monitor.facts.gpu_states import GpuState
from monitor.facts.readings import Snapshot
from monitor.gpus.hosts.policy import SILENT_AFTER
from monitor.incidents.facts import NONE, Badge, Badges
from monitor.pages.live.cards import Card

# Shorter idle times occur between two jobs.
IDLE_NOTICED_S = 60
WORST_FIRST = ("failing", "warning")


@dataclass(frozen=True, slots=True)
class Summary:
    """The headline and the counts beside it. free: idle GPUs that take new work.

    silent: GPUs of hosts without contact. Nothing else counts them, nor processes there.
    """

    shape: str
    verdict: str
    gpus: int
    busy: int
    free: int
    people: int
    processes: int
    waiting: int
    silent: int = 0


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """startable: waiting jobs that an idle GPU could start."""

    waiting: int = 0
    startable: int = 0


NO_QUEUE = QueueCounts()


def summary(
    snapshots: Sequence[Snapshot],
    gpu_cards: Sequence[Card],
    now: datetime,
    badges: Badges = NONE,
    queue: QueueCounts = NO_QUEUE,
) -> Summary:
    """`gpu_cards`: the cards of `snapshots`."""
    shape, verdict = _verdict(snapshots, gpu_cards, now, badges, queue.startable)
    unheard = {card.host for card in gpu_cards if card.is_silent}
    heard = [s for s in snapshots if s.host.name not in unheard]
    owners = {p.job_owner or p.user for s in heard for p in s.processes} - {None}
    return Summary(
        shape=shape,
        verdict=verdict,
        gpus=sum(not card.is_silent for card in gpu_cards),
        busy=sum(card.shape == "busy" or card.works_on for card in gpu_cards),
        free=sum(card.is_free for card in gpu_cards),
        people=len(owners),
        processes=len({(s.host.name, p.pid) for s in heard for p in s.processes}),
        waiting=queue.waiting,
        silent=sum(card.is_silent for card in gpu_cards),
    )


def _verdict(
    snapshots: Sequence[Snapshot],
    gpu_cards: Sequence[Card],
    now: datetime,
    badges: Badges,
    startable: int,
) -> tuple[str, str]:
    if not snapshots:
        return "waiting", "Waiting for the first reading"
    troubles = [
        *_silence(snapshots, now),
        *_health(snapshots, gpu_cards),
        *_incidents(badges, gpu_cards),
        *_idle(gpu_cards, now, startable),
    ]
    if troubles:
        return min(troubles, key=lambda trouble: WORST_FIRST.index(trouble[0]))
    if not gpu_cards:
        return "idle", "No GPUs found on this machine"
    return "ok", "The GPU is healthy" if len(
        gpu_cards
    ) == 1 else f"{len(gpu_cards)} of {len(gpu_cards)} GPUs healthy"


def _silence(snapshots: Sequence[Snapshot], now: datetime) -> Iterator[tuple[str, str]]:
    """Hosts without contact. Of a single host, the page itself says that it gets no readings."""
    silent = [s.host.name for s in snapshots if now - s.at > SILENT_AFTER]
    if silent and len(snapshots) > 1:
        named = silent[0] if len(silent) == 1 else f"{len(silent)} hosts"
        yield "failing", f"No contact with {named}"


def _health(snapshots: Sequence[Snapshot], gpu_cards: Sequence[Card]) -> Iterator[tuple[str, str]]:
    for state, word in ((GpuState.LOST, "lost"), (GpuState.FAILING, "failing")):
        if named := [card for card in gpu_cards if card.state is state]:
            yield "failing", f"{_gpu_words(named)} {word}"
    if any(snapshot.problem for snapshot in snapshots):
        yield "warning", "The GPUs can't be read"
    ailing = [card for card in gpu_cards if card.ailing]
    if len(ailing) == 1:
        yield ailing[0].ailing or "warning", f"GPU {ailing[0].index} is {ailing[0].condition}"
    elif ailing:
        yield "warning", f"{len(ailing)} GPUs accept no new jobs"


def _incidents(badges: Badges, gpu_cards: Sequence[Card]) -> Iterator[tuple[str, str]]:
    worst = badges.worst
    if worst is None:
        return
    shape = "failing" if worst.severity == "error" else "warning"
    yield shape, f"{_title_with_gpu(worst, gpu_cards)}: others wait"


def _title_with_gpu(badge: Badge, gpu_cards: Sequence[Card]) -> str:
    index = next((card.index for card in gpu_cards if card.uuid == badge.gpu_uuid), None)
    return badge.title if index is None else f"{badge.title} on GPU {index}"


def _idle(gpu_cards: Sequence[Card], now: datetime, startable: int) -> Iterator[tuple[str, str]]:
    idle = [
        card
        for card in gpu_cards
        if card.is_free and card.since and (now - card.since).total_seconds() >= IDLE_NOTICED_S
    ]
    if startable and idle:
        jobs = "1 job waits" if startable == 1 else f"{startable} jobs wait"
        yield "warning", f"{_gpu_words(idle)} idle while {jobs}"


def _gpu_words(named: Sequence[Card]) -> str:
    return f"GPU {named[0].index} is" if len(named) == 1 else f"{len(named)} GPUs are"
