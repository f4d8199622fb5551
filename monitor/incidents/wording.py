"""The text of an incident, and the advice to its owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from monitor.facts import incidents as rules
from monitor.facts.formats import duration, gib, percent, sig3, use_of
from monitor.incidents.policy.findings import Finding
from monitor.incidents.policy.lifecycle import OpenIncident

GIB = 1024**3


def sentence(finding: Finding, incident: OpenIncident) -> str:
    """Such as "Detected GPU hog: python (PID 12345, alice) at 95 % on GPU 2 for 30 min; …"."""
    lasts = duration(incident.lasts)
    return f"{_SENTENCES[finding.rule](finding, incident, lasts)}{_harm(incident)}"


def _harm(incident: OpenIncident) -> str:
    if not incident.waited_jobs:
        return "; no job waits" if incident.rule in rules.HOG_RULES else ""
    jobs, in_all = f"{incident.waited_jobs} jobs", " in all"
    if incident.waited_jobs == 1:
        jobs, in_all = "1 job", ""
    return f"; {jobs} waited {duration(incident.waited_s)}{in_all}"


def _sustained(f: Finding, i: OpenIncident, lasts: str) -> str:
    title = "Detected GPU hog" if i.is_hog or i.says_hog else "Heavy use outside the queue"
    return f"{title}: {_subject(f)} at {percent(i.mean_pct)} on {_places(f)} for {lasts}"


def _fair(f: Finding, i: OpenIncident, lasts: str) -> str:
    more = f", and {f.processes - 1} more" if f.processes > 1 else ""
    process = (
        f" ({f.process.program or 'a process'}, PID {f.process.pid}{more})" if f.process else ""
    )
    return (
        f"Above the fair share: {_person(f)}{process} has used {percent(i.mean_pct)} of the GPUs"
        f" for {lasts}; the fair share is {percent(f.expected_pct)}"
    )


def _memory(f: Finding, i: OpenIncident, lasts: str) -> str:
    title = "Detected memory hog" if i.is_hog else "Heavy memory use outside the queue"
    return (
        f"{title}: {_subject(f)} holds {gib(f.memory_bytes)} of"
        f" {gib(f.gpu.memory_total_bytes if f.gpu else None)} on {_gpu(f)} for {lasts}"
    )


def _leak(f: Finding, i: OpenIncident, lasts: str) -> str:
    growth = sig3((f.growth_per_h or 0) / GIB)
    return (
        f"Possible memory leak: {_subject(f)} on {_gpu(f)} has grown by {growth} GiB/h for {lasts},"
        f" now {gib(f.memory_bytes)}"
    )


def _idle(f: Finding, i: OpenIncident, lasts: str) -> str:
    return (
        f"Memory held idle: {_subject(f)} holds {gib(f.memory_bytes)} on {_gpu(f)}"
        f" and {use_of('the GPU', i.mean_pct, i.lasts)}"
    )


def _orphaned(f: Finding, i: OpenIncident, lasts: str) -> str:
    size = gib(f.memory_bytes)
    return f"Orphaned memory: {size} on {_gpu(f)} in use by no visible process for {lasts}"


def _empty(f: Finding, i: OpenIncident, lasts: str) -> str:
    return f"Booked but empty: {_job(f)} has had no process on {_gpus(f)} for {lasts}"


def _unused(f: Finding, i: OpenIncident, lasts: str) -> str:
    use = use_of(_each_gpu(f), i.peak_pct, i.lasts, at_most=True)
    return f"Booked GPUs idle: {_job(f)} {use}"


def _over(f: Finding, i: OpenIncident, lasts: str) -> str:
    return (
        f"More memory than booked: {_job(f)} holds {gib(f.memory_bytes)} on"
        f" {_gpu(f)} for {lasts}; it requested {gib(f.booked_bytes)}"
    )


def _extra(f: Finding, i: OpenIncident, lasts: str) -> str:
    return (
        f"More GPUs than booked: {_subject(f)} of job {f.job_ref} is on {_gpu(f)}"
        f" with {gib(f.memory_bytes)} for {lasts}"
    )


def _unclaimed(f: Finding, i: OpenIncident, lasts: str) -> str:
    minutes = f"{f.gpu_minutes or 0:.0f}"
    return (
        f"Use outside the queue: {_subject(f)} on {_gpu(f)} for {lasts}"
        f" with {gib(f.memory_bytes)} and {minutes} GPU-minutes in the last 2 h"
    )


def _cpu(f: Finding, i: OpenIncident, lasts: str) -> str:
    title = "CPU hog" if i.is_hog else "Heavy CPU use"
    return f"{title}: {_subject(f)} has used {percent(i.mean_pct)} of all CPUs for {lasts}"


_SENTENCES = {
    rules.SUSTAINED: _sustained,
    rules.FAIR_SHARE: _fair,
    rules.MEMORY_HOG: _memory,
    rules.LEAK: _leak,
    rules.IDLE_HELD: _idle,
    rules.ORPHANED: _orphaned,
    rules.CLAIMED_EMPTY: _empty,
    rules.UNUSED_GPUS: _unused,
    rules.OVER_MEMORY: _over,
    rules.EXTRA_GPUS: _extra,
    rules.UNCLAIMED: _unclaimed,
    rules.CPU_HOG: _cpu,
}

# Advice to the owner.
ADVICE = {
    rules.SUSTAINED: "Next time, submit it as a job: gpucoord submit -- your command.",
    rules.FAIR_SHARE: "Stop some of the processes, or submit them as preemptible jobs.",
    rules.MEMORY_HOG: "Limit the memory of the program if it needs less, or submit it as a job.",
    rules.LEAK: "Look for tensors kept in lists, and stop the process before the GPU is full.",
    rules.IDLE_HELD: "If you are done, restart the notebook's kernel or stop the process.",
    rules.ORPHANED: "An operator can find the process: fuser -v /dev/nvidia*.",
    rules.CLAIMED_EMPTY: "If the job does not need the GPU yet, split it; if it hangs, cancel it.",
    rules.UNUSED_GPUS: "Request fewer GPUs next time, or check that the program sees all of them.",
    rules.OVER_MEMORY: "Request more memory next time.",
    rules.EXTRA_GPUS: "Use only the GPUs in CUDA_VISIBLE_DEVICES.",
    rules.UNCLAIMED: "Submit it as a job: gpucoord submit -- your command.",
    rules.CPU_HOG: "Run it with nice, or with fewer threads.",
}


class IncidentSummary(Struct, frozen=True):
    """The text and the advice for the owner of an incident."""

    text: str
    advice: str


class StoredIncident(Protocol):
    """The row of an incident, as its summary needs it."""

    rule: Any
    program: Any
    memory_bytes: Any
    mean_pct: Any
    peak_pct: Any
    since_at: Any
    last_seen_at: Any
    waited_jobs: Any
    job_ref: Any


def to_owner(incident: StoredIncident, gpu: str) -> IncidentSummary:
    """The incident as told to its owner, without blame."""
    passed = incident.last_seen_at - incident.since_at
    lasts, mean = duration(passed), percent(incident.mean_pct)
    it, job = incident.program or "A process", f"job {incident.job_ref}"
    memory = gib(incident.memory_bytes)
    text = {
        rules.SUSTAINED: f"{it} has kept {gpu} {mean} busy for {lasts}.",
        rules.FAIR_SHARE: f"You have used {mean} of the GPUs for {lasts}.",
        rules.MEMORY_HOG: f"{it} has held {memory}, most of {gpu}, for {lasts}.",
        rules.LEAK: f"The memory of {it} on {gpu} keeps growing: {memory} now.",
        rules.IDLE_HELD: f"{it} holds {memory} on {gpu} and"
        f" {use_of('the GPU', incident.mean_pct, passed)}.",
        rules.CLAIMED_EMPTY: f"Your {job} has had no process on {gpu} for {lasts}.",
        rules.UNUSED_GPUS: f"Your {job} {use_of(gpu, incident.peak_pct, passed, at_most=True)}.",
        rules.OVER_MEMORY: f"Your {job} holds {memory} on {gpu}: more than requested.",
        rules.EXTRA_GPUS: f"{it} of your {job} uses {gpu}, which the job has not requested.",
        rules.UNCLAIMED: f"{it} has used {gpu} outside the queue for {lasts}.",
        rules.CPU_HOG: f"{it} has used {mean} of all CPUs for {lasts}.",
    }.get(incident.rule, f"{it} on {gpu} for {lasts}.")
    return IncidentSummary(text + _others(incident.waited_jobs), ADVICE.get(incident.rule, ""))


def _others(waited_jobs: int) -> str:
    if not waited_jobs:
        return " No job is waiting for it."
    return f" {'1 job waits' if waited_jobs == 1 else f'{waited_jobs} jobs have waited'} for it."


def _subject(f: Finding) -> str:
    process = f.process
    if process is None:
        return _person(f)
    more = f" and {f.processes - 1} more" if f.processes > 1 else ""
    return f"{process.program or 'a process'} (PID {process.pid}, {_person(f)}){more}"


def _job(f: Finding) -> str:
    return f"model {f.model} (job {f.job_ref})" if f.model else f"job {f.job_ref} ({_person(f)})"


def _person(f: Finding) -> str:
    return f.owner or (f"owner unknown, {f.container}" if f.container else "owner unknown")


def _gpu(f: Finding) -> str:
    return f"GPU {f.gpu.index}" if f.gpu else "this machine"


def _places(f: Finding) -> str:
    """All GPUs of use that moves between them."""
    return f"{_gpus(f)} in turn" if len(f.gpus) > 1 else _gpu(f)


def _each_gpu(f: Finding) -> str:
    return f"each of {_gpus(f)}" if len(f.gpus) > 1 else _gpus(f)


def _gpus(f: Finding) -> str:
    return gpu_names(f.gpus) if len(f.gpus) > 1 else _gpu(f)


def gpu_names(indices: Sequence[int]) -> str:
    """Such as "GPU 1", or "GPUs 1, 2 and 3"."""
    if len(indices) == 1:
        return f"GPU {indices[0]}"
    return f"GPUs {', '.join(map(str, indices[:-1]))} and {indices[-1]}"
