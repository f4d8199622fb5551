"""Policy: reject requests that no host can ever satisfy, with the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from monitor.facts.readings import GpuReading, Health, Snapshot
from monitor.gpus.policy import capability
from scheduler.facts.jobs import PRIORITIES, NewJob, Refusal, Requirement
from scheduler.facts.people import Quota
from scheduler.facts.units import minutes_taken, size
from scheduler.limits.quotas.policy.quotas import SLACK, held, memory
from scheduler.queue.planner.matching import Traits, constraints_text, suited, version

WITHOUT_GPUS = "Request 0 GPUs for a job that needs none (command line: --gpus 0)."


def refuse(
    requirement: Requirement,
    hosts: Sequence[Snapshot],
    powers: Mapping[str, float] | None = None,
) -> list[Refusal]:
    """Why no host could ever satisfy it: the refusals of the host that comes closest.

    That is the host with the largest GPU where memory alone is short, else the one with most GPUs.
    """
    by_host = [_of_host(requirement, host, powers) for host in hosts]
    if not by_host or not all(by_host):
        return []
    fields = {
        refusal.field
        for host, refusals in zip(hosts, by_host, strict=True)
        if host.gpus
        for refusal in refusals
    }
    is_memory = fields == {"gpu_memory"}
    sizes = [
        (_largest(host), len(host.gpus)) if is_memory else (len(host.gpus), _largest(host))
        for host in hosts
    ]
    return by_host[max(range(len(hosts)), key=sizes.__getitem__)]


def _of_host(
    requirement: Requirement, host: Snapshot, powers: Mapping[str, float] | None
) -> list[Refusal]:
    if not host.gpus and host.probe == "none":
        return refuse_without_gpus(requirement, host.problem or "no NVIDIA driver was found.")
    return check(requirement, host.gpus, powers)


def _largest(host: Snapshot) -> int:
    return max((gpu.memory_total_bytes or 0 for gpu in host.gpus), default=0)


def check(
    requirement: Requirement,
    gpus: Sequence[GpuReading],
    powers: Mapping[str, float] | None = None,
) -> list[Refusal]:
    """One refusal for each part of `requirement` that these GPUs could not satisfy when idle.

    No GPUs: they cannot be read now, so nothing is refused and the job waits. powers: ranks from
    the settings, which take precedence.
    """
    if requirement.gpus < 0:
        return [Refusal(field="gpus", text="The number of GPUs can't be negative.")]
    if requirement.gpus == 0:
        return _check_without_gpu(requirement)
    if not gpus:
        return []
    refusals = [
        *_check_count(requirement, gpus),
        *_check_memory(requirement, gpus),
        *_check_traits(requirement, [_traits(gpu, powers) for gpu in gpus]),
    ]
    return refusals or _check_together(requirement, [_traits(gpu, powers) for gpu in gpus])


def suitable(
    requirement: Requirement,
    gpus: Sequence[GpuReading],
    powers: Mapping[str, float] | None = None,
) -> list[GpuReading]:
    """The GPUs that could take the request, or of which that is not known."""
    return [gpu for gpu in gpus if suited(requirement, [_traits(gpu, powers)])]


def refuse_without_gpus(requirement: Requirement, reason: str) -> list[Refusal]:
    """Refuse a job that asks for GPUs on a machine that is known to have none."""
    if requirement.gpus <= 0:
        return check(requirement, ())
    requested = _count(requirement.gpus)
    text = f"You ask for {requested}; this machine has none: {reason} {WITHOUT_GPUS}"
    return [Refusal(field="gpus", text=text)]


def refuse_by_nodes(requirement: Requirement, nodes: Sequence[int | None]) -> list[Refusal]:
    """Why no node of another engine could take the job. nodes: GPUs of each, None = unknown.

    What else the engine cannot allocate, it refuses itself.
    """
    if requirement.gpus <= 0 or not nodes or None in nodes:
        return check(requirement, ())
    most = max(number for number in nodes if number is not None)
    if requirement.gpus <= most:
        return []
    text = f"You ask for {_count(requirement.gpus)}; the largest node has {most}."
    return [Refusal(field="gpus", text=text)]


def _check_without_gpu(requirement: Requirement) -> list[Refusal]:
    refusals = []
    if requirement.memory_bytes is not None:
        text = "You ask for GPU memory without a GPU; ask for at least one GPU."
        refusals.append(Refusal(field="gpu_memory", text=text))
    if requirement.exclusive:
        text = "You ask for exclusive GPUs without a GPU; ask for at least one GPU."
        refusals.append(Refusal(field="exclusive", text=text))
    return refusals


def _check_count(requirement: Requirement, gpus: Sequence[GpuReading]) -> list[Refusal]:
    if requirement.gpus <= len(gpus):
        return []
    available = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    text = f"You ask for {requirement.gpus} GPUs; this machine has {available}."
    return [Refusal(field="gpus", text=text)]


def _check_memory(requirement: Requirement, gpus: Sequence[GpuReading]) -> list[Refusal]:
    """A GPU of unknown size, or a lost one, may be large enough."""
    requested = requirement.memory_bytes
    if requested is None:
        return []
    totals = [None if g.health is Health.LOST else g.memory_total_bytes for g in gpus]
    sizes = sorted((total for total in totals if total is not None), reverse=True)
    matching = totals.count(None) + sum(total >= requested for total in sizes)
    if requested > 0 and (matching >= requirement.gpus or not sizes):
        return []
    return [Refusal(field="gpu_memory", text=_memory_text(requested, sizes, matching))]


def _memory_text(requested: int, sizes: Sequence[int], matching: int) -> str:
    if requested <= 0:
        return "The GPU memory must be more than 0."
    request = f"You ask for {size(requested)} of GPU memory"
    if matching == 0:
        return f"{request}; the largest GPU here has {size(sizes[0])}."
    return f"{request} on each GPU; only {matching} of the GPUs here have that much."


def _check_traits(requirement: Requirement, gpus: Sequence[Traits]) -> list[Refusal]:
    """Check each property alone. A GPU of unknown kind may match."""
    refusals = []
    for field, single in _single_requirements(requirement).items():
        needed = min(requirement.gpus, len(gpus))
        matching = suited(single, gpus)
        if matching < needed:
            refusals.append(
                Refusal(field=field, text=_mismatch_text(field, single, gpus, matching))
            )
    return refusals


def _check_together(requirement: Requirement, gpus: Sequence[Traits]) -> list[Refusal]:
    """Each property is available, but not all on the same GPUs."""
    matching = suited(requirement, gpus)
    if matching >= requirement.gpus:
        return []
    result = "no GPU here is all of that"
    if matching:
        result = f"only {matching} of the {len(gpus)} GPUs here {'is' if matching == 1 else 'are'}"
    text = f"You ask for {_count(requirement.gpus)} {constraints_text(requirement)}; {result}."
    return [Refusal(field=next(iter(_single_requirements(requirement)), "gpus"), text=text)]


def _single_requirements(requirement: Requirement) -> dict[str, Requirement]:
    """By field: a requirement with only this property of the GPU."""
    gpus = requirement.gpus
    requirements = {
        "model": requirement.model and Requirement(gpus=gpus, model=requirement.model),
        "capability": requirement.capability
        and Requirement(gpus=gpus, capability=requirement.capability),
        "power": requirement.power is not None and Requirement(gpus=gpus, power=requirement.power),
        "on_gpu": requirement.gpu_uuid and Requirement(gpus=gpus, gpu_uuid=requirement.gpu_uuid),
    }
    return {field: single for field, single in requirements.items() if single}


def _mismatch_text(field: str, single: Requirement, gpus: Sequence[Traits], matching: int) -> str:
    request = f"You ask for {_count(single.gpus)} {constraints_text(single)}"
    if field == "on_gpu":
        return f"{request}; " + ("it is a single one." if matching else "it is not here.")
    if matching:
        return f"{request}; this machine has {matching}."
    return f"{request}; here {_alternatives(field, gpus)}."


def _alternatives(field: str, gpus: Sequence[Traits]) -> str:
    """The available alternatives, in words."""
    if field == "model":
        return f"there is {', '.join(sorted({gpu.model or 'an unknown one' for gpu in gpus}))}"
    if field == "capability":
        highest = max((gpu.capability for gpu in gpus if gpu.capability), default=(0, 0))
        return f"the highest is {highest[0]}.{highest[1]}"
    known = [gpu.power for gpu in gpus if gpu.power is not None]
    return f"the highest is {max(known):g}" if known else "no GPU has a known value"


def _traits(gpu: GpuReading, powers: Mapping[str, float] | None) -> Traits:
    """A lost GPU has an unknown size."""
    return Traits(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.name,
        capability=version(gpu.compute_capability),
        power=capability.of(gpu, powers).power,
        total_bytes=None if gpu.health is Health.LOST else gpu.memory_total_bytes,
    )


def _count(gpus: int) -> str:
    return "a GPU" if gpus == 1 else f"{gpus} GPUs"


# The field of a refusal that concerns the queue, not the job.
QUEUE = "queue"


def refusals(
    new: NewJob, quota: Quota, waiting: int | None, gpu_bytes: int | None
) -> list[Refusal]:
    """All refusals. waiting: number of jobs that the user has in the queue; None: not one more."""
    checks = [
        _jobs(quota),
        _gpus(new, quota),
        _memory(new, quota, gpu_bytes),
        _priority(new, quota),
        _gpu_share(new, quota),
        _budget(new, quota, gpu_bytes),
        _queue(new, quota, waiting),
    ]
    return [refusal for refusal in checks if refusal is not None]


def _priority(new: NewJob, quota: Quota) -> Refusal | None:
    limit = quota.priority
    if limit is None or new.priority <= limit:
        return None
    requested, allowed = _priority_words(new.priority), _priority_words(limit)
    return Refusal(
        field="priority", text=f"You ask for priority {requested}; you may use up to {allowed}."
    )


def _gpu_share(new: NewJob, quota: Quota) -> Refusal | None:
    limit, requirement = quota.gpu_share_pct, new.requirement
    if limit is None or not requirement.shares or (requirement.share_pct or 0) <= limit:
        return None
    request = f"You ask for {requirement.share_pct} % of a shared GPU's time"
    text = f"{request}; your quota allows {limit} %."
    return Refusal(field="gpu_share", text=text)


def _jobs(quota: Quota) -> Refusal | None:
    if quota.jobs != 0:
        return None
    return Refusal(field="quota", text="Your quota lets you run no jobs.")


def _gpus(new: NewJob, quota: Quota) -> Refusal | None:
    requested, limit = new.requirement.gpus, quota.gpus
    if limit is None or requested <= limit:
        return None
    allowed = "none" if limit == 0 else f"{limit} at a time"
    text = f"You ask for {_gpu_words(requested)}; your quota allows {allowed}."
    return Refusal(field="gpus", text=text)


def _memory(new: NewJob, quota: Quota, gpu_bytes: int | None) -> Refusal | None:
    limit, requested = quota.memory_bytes, memory(new.requirement, gpu_bytes)
    if limit is None or not new.requirement.gpus or requested <= limit:
        return None
    whole = new.requirement.exclusive or new.requirement.memory_bytes is None
    request = (
        f"Whole GPUs count with all their memory, {size(requested)};"
        " say how much you need to share one"
        if whole
        else f"You ask for {size(requested)} of GPU memory in all"
    )
    return Refusal(
        field="gpu_memory", text=f"{request}; your quota allows {size(limit)} at a time."
    )


def _budget(new: NewJob, quota: Quota, gpu_bytes: int | None) -> Refusal | None:
    """Without a time limit, the job may be short enough."""
    budget = quota.gpu_minutes
    if budget is None or not new.requirement.gpus:
        return None
    if budget <= 0:
        return Refusal(field="gpus", text="Your quota allows no GPU-minutes.")
    time_limit = new.time_limit or timedelta(0)
    gpu_count = held(new.requirement, gpu_bytes)
    gpu_minutes = gpu_count * time_limit.total_seconds() / 60
    if gpu_minutes <= budget + SLACK:
        return None
    minutes = time_limit.total_seconds() / 60
    text = (
        f"{minutes_taken(minutes):g} min on {gpu_count:.3g} GPU{'' if gpu_count == 1 else 's'} are"
        f" {minutes_taken(gpu_minutes):g} GPU-minutes; your quota allows {budget:g} a day."
        " Ask for less time or fewer GPUs."
    )
    return Refusal(field="time_limit", text=text)


def _queue(new: NewJob, quota: Quota, waiting: int | None) -> Refusal | None:
    limit, new_jobs = quota.queued, new.size
    if limit is None or waiting is None or waiting + new_jobs <= limit:
        return None
    queued = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
    addition = "this is one more" if new_jobs == 1 else f"this array has {new_jobs} more"
    text = (
        f"You may have {limit} waiting; {queued} already, and {addition}. Wait until some have"
        " started, cancel some, or ask an operator for a higher quota."
    )
    # An array that is too large by itself never fits.
    return Refusal(field="array" if new.array and new_jobs > limit else QUEUE, text=text)


def _gpu_words(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _priority_words(priority: int) -> str:
    return f"{priority} ({PRIORITIES[priority]})"
