"""The dashboard's region of what holds starts back now, the same for all viewers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import QuerySet

from monitor import constraints
from monitor.models import Constraint, Gpu
from monitor.pages.regions import Context, Region
from monitor.policy.constraints import GRIPS, Grip
from monitor.prepared import prepared
from scheduler import modes, throttling
from scheduler.jobs import PriorityClass
from scheduler.models import ModeState, Quota
from scheduler.plans import Throttle
from scheduler.policy.mode import Mode
from scheduler.policy.pressure import CLASSES, Deferral
from scheduler.policy.throttle import Memory

# What is said of shares where nobody has set one for all.
EXAMPLE_PCT = 30.0
# More busy GPUs than this are counted; their lines show which.
MOST_NAMED = 8
SHAPES = {Grip.HARD: "failing", Grip.SOFT: "warning", Grip.NONE: "unknown"}


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that holds starts back: a shape, what it is, what it does, since when."""

    shape: str
    what: str
    effect: str = ""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class HostPressure:
    """`quotas`: how quotas count now, in words, "" when they count fully."""

    host: str
    lines: tuple[Line, ...]
    quotas: str
    mode: str
    mode_reason: str
    mode_since: datetime | None
    mode_until: datetime | None

    @property
    def is_defensive(self) -> bool:
        return self.mode == Mode.DEFENSIVE


def load(now: datetime) -> Context:
    known = {row.host: row for row in modes.shown("")}
    open_rows = constraints.open_rows()
    hosts = []
    for host, at, allowed, memory in throttling.shown():
        short = [_constraint(row) for row in open_rows if row.host == host]
        held = _lines(allowed, memory) if now - at <= throttling.STALE_AFTER else []
        hosts.append(_pressure(host, [*short, *held], _quotas(allowed), known.get(host)))
    return {"hosts": tuple(hosts), "several": len(hosts) > 1}


def _pressure(
    host: str, lines: Sequence[Line], quotas: str, mode: ModeState | None
) -> HostPressure:
    return HostPressure(
        host=host,
        lines=tuple(lines),
        quotas=quotas,
        mode=mode.mode if mode else "",
        mode_reason=mode.reason if mode else "",
        mode_since=mode.since_at if mode else None,
        mode_until=mode.override_until if mode else None,
    )


def _constraint(row: Constraint) -> Line:
    grip = GRIPS.get(row.kind, Grip.NONE)
    effect = {Grip.HARD: "nothing starts", Grip.SOFT: "normal and background jobs wait"}
    return Line(SHAPES[grip], row.text, effect.get(grip, ""), row.from_at)


def _lines(allowed: Throttle, memory: Memory) -> Iterable[Line]:
    yield from _deferred(memory)
    yield from _busy(allowed)
    if allowed.starts is not None:
        count = f"At most {allowed.starts} more" if allowed.starts else "No more"
        noun = "job is" if allowed.starts == 1 else "jobs are"
        yield Line("waiting", f"{count} {noun} put beside others now", "GPUs' use has its band")


def _deferred(memory: Memory) -> Iterable[Line]:
    """Classes that wait for the same are told together."""
    together: dict[str, list[tuple[PriorityClass, Deferral]]] = {}
    for kind in CLASSES:
        deferral = memory.deferrals.get(kind)
        if deferral is not None and deferral.holds:
            why = ", ".join(strain.text for strain in deferral.strains)
            together.setdefault(why, []).append((kind, deferral))
    for why, found in together.items():
        who = " and ".join(kind.value for kind, _ in found)
        yield Line(
            "waiting",
            f"{who.capitalize()} jobs are deferred",
            why,
            _moment(min(deferral.since_t for _, deferral in found)),
            _moment(max(deferral.until_t for _, deferral in found)),
        )


def _busy(allowed: Throttle) -> Iterable[Line]:
    """GPUs that take nothing more, the same ones together."""
    normal = frozenset(allowed.closed_gpus.get(PriorityClass.NORMAL, {}))
    background = frozenset(allowed.closed_gpus.get(PriorityClass.BACKGROUND, {})) - normal
    known = {gpu.uuid: gpu.index for gpu in _gpus()} if normal or background else {}
    for uuids, effect in (
        (normal, "only user-initiated jobs are put there"),
        (background, "no background jobs are put there"),
    ):
        if indices := sorted(known[uuid] for uuid in uuids & known.keys()):
            yield Line("busy", f"{_named(indices)} busy", effect)


def _named(indices: Sequence[int]) -> str:
    """`GPU 3 is`, `GPUs 1, 4 are`, `25 GPUs are`."""
    if len(indices) > MOST_NAMED:
        return f"{len(indices)} GPUs are"
    listed = ", ".join(map(str, indices))
    return f"GPUs {listed} are" if len(indices) > 1 else f"GPU {listed} is"


@prepared
def _gpus() -> QuerySet[Gpu]:
    return Gpu.objects.only("index")


def _quotas(allowed: Throttle) -> str:
    """Of the GPUs that are ours: what a share is worth for normal and background jobs."""
    parts = [part for part in allowed.multipliers.values() if part > 0]
    if not parts or min(parts) >= 1:
        return ""
    mean = sum(parts) / len(parts)
    why = f": {allowed.reason}" if allowed.reason else ""
    pct = _share_of_all()
    return f"A share of {pct:g} % counts as {pct * mean:.2g} % now{why}."


def _share_of_all() -> float:
    """The share that holds for everybody, in percent; where nobody has set one, an example."""
    found = (row.share_pct for row in _of_all() if row.share_pct is not None)
    return next(found, EXAMPLE_PCT)


@prepared
def _of_all() -> QuerySet[Quota]:
    return Quota.objects.filter(user=None, group=None)


def _moment(t: float) -> datetime:
    return datetime.fromtimestamp(t, UTC)


REGION = Region("pressure", "scheduler/_pressure.html", load, place=60)
