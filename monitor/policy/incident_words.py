"""An incident in one plain sentence, and what its owner is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from monitor.formats import duration, gib, percent, sig3
from monitor.policy import hog_rules as rules
from monitor.policy.findings import Finding
from monitor.policy.incident_life import Standing

GIB = 1024**3


def sentence(finding: Finding, incident: Standing) -> str:
    """Such as "Detected GPU hog: python (PID 12345, alice) at 95 % on GPU 2 for 30 min; …"."""
    lasts = duration(incident.lasts)
    return f"{_SENTENCES[finding.rule](finding, incident, lasts)}{_harm(incident)}"


def _harm(incident: Standing) -> str:
    if not incident.waited_jobs:
        return "; nobody waits" if incident.rule in rules.HOG_RULES else ""
    who = "1 job" if incident.waited_jobs == 1 else f"{incident.waited_jobs} jobs"
    return f"; {who} waited {duration(incident.waited_s)}"


def _sustained(f: Finding, i: Standing, lasts: str) -> str:
    return f"Detected GPU hog: {_who(f)} at {percent(i.mean_pct)} on {_gpu(f)} for {lasts}"


def _fair(f: Finding, i: Standing, lasts: str) -> str:
    more = f", and {f.processes - 1} more" if f.processes > 1 else ""
    what = f" ({f.process.program or 'a process'}, PID {f.process.pid}{more})" if f.process else ""
    return (
        f"Above the fair share: {_person(f)}{what} takes {percent(i.mean_pct)} of the GPUs"
        f" for {lasts}, others leave {percent(f.expected_pct)}"
    )


def _memory(f: Finding, i: Standing, lasts: str) -> str:
    return (
        f"Detected memory hog: {_who(f)} holds {gib(f.memory_bytes)} of"
        f" {gib(f.gpu.memory_total_bytes if f.gpu else None)} on {_gpu(f)} for {lasts}"
    )


def _leak(f: Finding, i: Standing, lasts: str) -> str:
    growth = sig3((f.growth_per_h or 0) / GIB)
    return (
        f"Memory only grows: {_who(f)} on {_gpu(f)}, by {growth} GiB an hour for {lasts},"
        f" now {gib(f.memory_bytes)}"
    )


def _idle(f: Finding, i: Standing, lasts: str) -> str:
    return (
        f"Held idle: {_who(f)} holds {gib(f.memory_bytes)} on {_gpu(f)}"
        f" that nothing has used for {lasts}"
    )


def _orphaned(f: Finding, i: Standing, lasts: str) -> str:
    return f"Orphaned memory: no process holds {gib(f.memory_bytes)} on {_gpu(f)}, for {lasts}"


def _empty(f: Finding, i: Standing, lasts: str) -> str:
    job = f"job {f.job_ref} ({_person(f)})"
    return f"Booked but empty: {job} has {_gpus(f)} without a process for {lasts}"


def _unused(f: Finding, i: Standing, lasts: str) -> str:
    return f"Booked GPUs unused: job {f.job_ref} ({_person(f)}) has not used {_gpus(f)} for {lasts}"


def _over(f: Finding, i: Standing, lasts: str) -> str:
    return (
        f"More memory than booked: job {f.job_ref} ({_person(f)}) holds {gib(f.memory_bytes)} on"
        f" {_gpu(f)} for {lasts}, it asked for {gib(f.booked_bytes)}"
    )


def _extra(f: Finding, i: Standing, lasts: str) -> str:
    return (
        f"More GPUs than booked: {_who(f)} of job {f.job_ref} is on {_gpu(f)}"
        f" with {gib(f.memory_bytes)} for {lasts}"
    )


def _unclaimed(f: Finding, i: Standing, lasts: str) -> str:
    minutes = f"{f.gpu_minutes or 0:.0f}"
    return (
        f"Outside the queue: {_who(f)} on {_gpu(f)} for {lasts}"
        f" with {gib(f.memory_bytes)} and {minutes} GPU-minutes of late"
    )


def _cpu(f: Finding, i: Standing, lasts: str) -> str:
    return f"CPU hog: {_who(f)} takes {percent(i.mean_pct)} of all CPUs for {lasts}"


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

# What helps, said to the one who can.
ADVICE = {
    rules.SUSTAINED: "Start this through the queue next time: gpucoord submit -- your command.",
    rules.FAIR_SHARE: "Stop some of it, or submit it as a job: then it makes room by itself.",
    rules.MEMORY_HOG: "If you need less, limit what your program takes; else submit it as a job.",
    rules.LEAK: "Look for tensors that are kept in lists, and end it before the GPU is full.",
    rules.IDLE_HELD: "If you are done, restart the notebook's kernel or end the process.",
    rules.ORPHANED: "An operator can find what holds it: fuser -v /dev/nvidia*.",
    rules.CLAIMED_EMPTY: "If the job needs no GPU yet, split it; if it hangs, cancel it.",
    rules.UNUSED_GPUS: "Ask for fewer GPUs next time, or check that your program sees all of them.",
    rules.OVER_MEMORY: "Ask for more memory next time, with a little to spare.",
    rules.EXTRA_GPUS: "Use only the GPUs in CUDA_VISIBLE_DEVICES.",
    rules.UNCLAIMED: "Submit it as a job: gpucoord submit -- your command.",
    rules.CPU_HOG: "Run it with nice, or with fewer threads.",
}


@dataclass(frozen=True, slots=True)
class Told:
    """What a person's own page says of one incident."""

    text: str
    advice: str


def to_owner(
    rule: str,
    *,
    program: str,
    gpu: str,
    memory_bytes: int | None,
    mean_pct: float | None,
    since_at: datetime,
    last_seen_at: datetime,
    waited_jobs: int,
    job_ref: str,
) -> Told:
    """The same, to the one whom it concerns: no blame, what it means, what helps."""
    lasts = duration(last_seen_at - since_at)
    it = program or "A process"
    said = {
        rules.SUSTAINED: f"{it} keeps {gpu} {percent(mean_pct)} busy, for {lasts}.",
        rules.FAIR_SHARE: f"You use {percent(mean_pct)} of the GPUs, for {lasts}.",
        rules.MEMORY_HOG: f"{it} holds {gib(memory_bytes)}, most of {gpu}, for {lasts}.",
        rules.LEAK: f"The memory of {it} on {gpu} only grows; it is {gib(memory_bytes)} now.",
        rules.IDLE_HELD: f"You hold {gib(memory_bytes)} on {gpu} that nothing has used"
        f" for {lasts}.",
        rules.CLAIMED_EMPTY: f"Your job {job_ref} has had no process on {gpu} for {lasts}.",
        rules.UNUSED_GPUS: f"Your job {job_ref} has not used {gpu} for {lasts}.",
        rules.OVER_MEMORY: f"Your job {job_ref} holds {gib(memory_bytes)} on {gpu}: more than"
        " you asked for.",
        rules.EXTRA_GPUS: f"{it} of your job {job_ref} is on {gpu}, which the job has not booked.",
        rules.UNCLAIMED: f"{it} is on {gpu} for {lasts}, past the queue.",
        rules.CPU_HOG: f"{it} takes {percent(mean_pct)} of all CPUs, for {lasts}.",
    }.get(rule, f"{it} on {gpu}, for {lasts}.")
    return Told(said + _others(rule, waited_jobs), ADVICE.get(rule, ""))


def _others(rule: str, waited_jobs: int) -> str:
    if not waited_jobs:
        harmless = rule in rules.HOG_RULES
        return f" Nobody waits for it now{', so it harms nobody' if harmless else ''}."
    return f" {'1 job waits' if waited_jobs == 1 else f'{waited_jobs} jobs have waited'} for it."


def _who(f: Finding) -> str:
    process = f.process
    if process is None:
        return _person(f)
    more = f" and {f.processes - 1} more" if f.processes > 1 else ""
    return f"{process.program or 'a process'} (PID {process.pid}, {_person(f)}){more}"


def _person(f: Finding) -> str:
    return f.who or "owner unknown"


def _gpu(f: Finding) -> str:
    return f"GPU {f.gpu.index}" if f.gpu else "this machine"


def _gpus(f: Finding) -> str:
    if len(f.gpus) < 2:
        return _gpu(f)
    return f"GPUs {', '.join(map(str, f.gpus[:-1]))} and {f.gpus[-1]}"
