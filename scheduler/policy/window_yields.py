"""Policy: who is asked to leave before an agreed time ends, or one kept for others begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from scheduler.people import Window
from scheduler.plans import RunningJob, Slot, Yield
from scheduler.policy.calendar import coming, current, ends, moment
from scheduler.policy.windows import WindowPolicy, about


def yields(
    running: Sequence[RunningJob],
    windows: Sequence[Window],
    gpus: Iterable[Slot],
    policy: WindowPolicy,
    now: datetime,
) -> tuple[Yield, ...]:
    """Who is asked to leave: before their own time ends, or a time kept for others begins."""
    if not windows:
        return ()
    ahead = now + timedelta(minutes=policy.yield_before_minutes)
    sizes = {gpu.gpu_uuid: gpu.total_bytes for gpu in gpus}
    gone = _in_the_way(running, windows, sizes, now, ahead)
    found = []
    for job in running:
        if job.yields or not (job.preemptible or policy.evict_all):
            continue
        why = _own_end(job, windows, now, ahead) or gone.get(job.id)
        if why is not None:
            text, at = why
            deadline = max(at, now + timedelta(seconds=1))
            found.append(
                Yield(job_id=job.id, code="WindowEnds", text=text, counts=False, deadline=deadline)
            )
    return tuple(found)


def _own_end(
    job: RunningJob, windows: Sequence[Window], now: datetime, ahead: datetime
) -> tuple[str, datetime] | None:
    """Its owner's time on one of its GPUs is over, or will be."""
    for gpu in job.gpu_uuids:
        mine = [w for w in about(gpu, windows) if job.owner in w.members]
        end = ends(mine, now, ahead)
        if end is None and any(not w.kept for w in mine):
            return "Your agreed time is over.", now
        if end is not None and end[0] <= ahead:
            return f"Your agreed time ends {moment(*end)}.", end[0]
    return None


def _in_the_way(
    running: Sequence[RunningJob],
    windows: Sequence[Window],
    sizes: Mapping[str, int | None],
    now: datetime,
    ahead: datetime,
) -> dict[int, tuple[str, datetime]]:
    """The jobs without which what is kept for others, now or soon, is free for them."""
    found: dict[int, tuple[str, datetime]] = {}
    for window in windows:
        span = current(window, now) or coming(window, now)
        if not window.kept or span is None or span.start > ahead:
            continue
        text = f"kept for {window.holder} from {moment(span.start, window.zone)}."
        what = "The GPU is" if window.share_pct >= 100 else f"{window.share_pct:g} % of the GPU is"
        others = [job for job in running if job.owner not in window.members]
        for gpu in {gpu for job in others for gpu in job.gpu_uuids}:
            if window in about(gpu, [window]):
                here = [job for job in others if gpu in job.gpu_uuids]
                for job in _without_room(here, window, sizes.get(gpu)):
                    found.setdefault(job.id, (f"{what} {text}", span.start))
    return found


def _without_room(
    jobs: Sequence[RunningJob], window: Window, total: int | None
) -> Iterable[RunningJob]:
    """Those that don't fit beside the window's share; what is more important, or older, stays."""
    if window.share_pct >= 100:
        yield from jobs
    elif total is not None:
        room = total * (1 - window.share_pct / 100)
        for job in sorted(jobs, key=lambda job: (-job.priority, job.started_at, job.id)):
            asked = job.requirement
            alone = asked.exclusive or asked.memory_bytes is None
            needs = total if alone else asked.memory_bytes or 0
            if needs > room:
                yield job
            else:
                room -= needs
