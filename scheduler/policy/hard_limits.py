"""Policy: what a person's limits can never allow, however long the job waits: refused at once.

What only waiting can change is no refusal: then the job queues, and says why it waits.
"""

from __future__ import annotations

from datetime import timedelta

from scheduler.jobs import PRIORITIES, NewJob, Refusal
from scheduler.people import Quota
from scheduler.policy.quotas import SLACK, held, memory
from scheduler.units import size

# The field of a refusal that is about the queue, not about the job.
QUEUE = "queue"


def refusals(new: NewJob, quota: Quota, waiting: int, gpu_bytes: int | None) -> list[Refusal]:
    """Each with the numbers. `waiting`: how many jobs the person has in the queue."""
    found = [
        _jobs(quota),
        _gpus(new, quota),
        _memory(new, quota, gpu_bytes),
        _priority(new, quota),
        _budget(new, quota, gpu_bytes),
        _queue(new, quota, waiting),
    ]
    return [refusal for refusal in found if refusal is not None]


def _priority(new: NewJob, quota: Quota) -> Refusal | None:
    most = quota.priority
    if most is None or new.priority <= most:
        return None
    asked, allowed = _priority_words(new.priority), _priority_words(most)
    return Refusal(
        field="priority", text=f"You ask for priority {asked}; you may use up to {allowed}."
    )


def _jobs(quota: Quota) -> Refusal | None:
    if quota.jobs != 0:
        return None
    return Refusal(field="quota", text="Your quota lets you run no jobs.")


def _gpus(new: NewJob, quota: Quota) -> Refusal | None:
    wants, most = new.requirement.gpus, quota.gpus
    if most is None or wants <= most:
        return None
    allowed = "none" if most == 0 else f"{most} at a time"
    text = f"You ask for {_gpu_words(wants)}; your quota allows {allowed}."
    return Refusal(field="gpus", text=text)


def _memory(new: NewJob, quota: Quota, gpu_bytes: int | None) -> Refusal | None:
    most, wants = quota.memory_bytes, memory(new.requirement, gpu_bytes)
    if most is None or not new.requirement.gpus or wants <= most:
        return None
    whole = new.requirement.exclusive or new.requirement.memory_bytes is None
    takes = (
        f"Whole GPUs count with all their memory, {size(wants)}; say how much you need to share one"
        if whole
        else f"You ask for {size(wants)} of GPU memory in all"
    )
    return Refusal(field="gpu_memory", text=f"{takes}; your quota allows {size(most)} at a time.")


def _budget(new: NewJob, quota: Quota, gpu_bytes: int | None) -> Refusal | None:
    """Only a limit is known; what has none may be short."""
    most = quota.gpu_minutes
    if most is None or not new.requirement.gpus:
        return None
    if most <= 0:
        return Refusal(field="gpus", text="Your quota allows no GPU-minutes.")
    limit = new.time_limit or timedelta(0)
    part = held(new.requirement, gpu_bytes)
    wants = part * limit.total_seconds() / 60
    if wants <= most + SLACK:
        return None
    minutes = limit.total_seconds() / 60
    text = (
        f"{minutes:.0f} min on {part:.3g} GPU{'' if part == 1 else 's'} are {wants:.0f}"
        f" GPU-minutes; your quota allows {most:.0f} a day. Ask for less time or fewer GPUs."
    )
    return Refusal(field="time_limit", text=text)


def _queue(new: NewJob, quota: Quota, waiting: int) -> Refusal | None:
    most, more = quota.queued, max(1, len(new.array))
    if most is None or waiting + more <= most:
        return None
    has = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
    asks = "this is one more" if more == 1 else f"this array has {more} more"
    text = f"You may have {most} waiting; {has} already, and {asks}. Wait until some have started."
    # An array that is too large by itself never fits.
    return Refusal(field="array" if new.array and more > most else QUEUE, text=text)


def _gpu_words(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _priority_words(priority: int) -> str:
    return f"{priority} ({PRIORITIES[priority]})"
