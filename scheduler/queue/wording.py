"""Policy: all sentences about blockers, from their code and facts.

`text` states all figures, `headline` one. `condition` says what ends a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from scheduler.facts.blockers import Blocker, Tier
from scheduler.facts.blockers import BlockerCode as Code
from scheduler.facts.units import size
from scheduler.limits.time_windows.policy import moment

# Sentences about blockers of the host (memory, CPUs, file systems) and of agents.


def cpus(number: float) -> str:
    return f"{number:g} CPU{'' if number == 1 else 's'}"


def host_memory(blocker: Blocker) -> str:
    wants, free, whole = (size(blocker.detail(name)) for name in ("wants", "free", "whole"))
    if blocker.never:
        return f"{_asks(blocker)} {wants} of host memory; jobs may reserve {whole} here."
    return f"{_asks(blocker)} {wants} of host memory; {free} of {whole} are not reserved by jobs."


def host_cpus(blocker: Blocker) -> str:
    wants, free, whole = (blocker.detail(name) for name in ("wants", "free", "whole"))
    if blocker.never:
        return f"{_asks(blocker)} {cpus(wants)}; jobs may reserve {whole:g} here."
    return f"{_asks(blocker)} {cpus(wants)}; {free:g} of {whole:g} are not reserved by jobs."


def _asks(blocker: Blocker) -> str:
    """A job that declares nothing reserves what earlier runs took, or the default."""
    if blocker.detail("undeclared"):
        return "By its earlier runs or the policy, it needs"
    return "It asks for"


def disk_full(blocker: Blocker) -> str:
    return (
        f"The file system of {blocker.detail('path')} is {blocker.detail('used_pct'):.0f} % full;"
        f" no job with its {blocker.requested} there starts above {blocker.detail('limit_pct'):g} %"
        f"{_floor(blocker)} ({size(blocker.detail('available_bytes'))} are left)."
    )


def _floor(blocker: Blocker) -> str:
    """Blockers of earlier versions have none."""
    floor = blocker.detail("limit_bytes")
    return "" if floor is None else f" with less than {size(floor)} free"


ENGINE_CODES = (
    Code.ENGINE_SUBMISSION,
    Code.ENGINE_REFUSED,
    Code.ENGINE_AWAY,
    Code.ENGINE_WAITS,
)
_ENGINE_VERBS = {
    Code.ENGINE_REFUSED: "refuses it",
    Code.ENGINE_AWAY: "does not answer",
    Code.ENGINE_WAITS: "says",
}


def engine(blocker: Blocker) -> str:
    """The reason of another engine, in its own words."""
    name, words = blocker.detail("engine"), blocker.detail("reason")
    if blocker.code not in _ENGINE_VERBS:
        return f"It is being submitted to {name}."
    end = "" if words.endswith((".", "!", "?")) else "."
    return f"{name} {_ENGINE_VERBS[blocker.code]}: {words}{end}" if name else f"{words}{end}"


def host_drained(blocker: Blocker) -> str:
    reason = blocker.detail("reason")
    why = f": {reason}" if reason else ""
    end = "" if why.endswith((".", "!", "?")) else "."
    return f"The host {blocker.detail('host')} is drained by {blocker.holder}{why}{end}"


def text(blocker: Blocker) -> str:
    """The reason in one or two sentences, with all its figures."""
    return _TEXTS[blocker.code](blocker)


def headline(blocker: Blocker) -> str:
    """The reason in one sentence with at most one figure."""
    words = _HEADLINES.get(blocker.code)
    return (words(blocker) if words is not None else "") or text(blocker)


def _gpu(blocker: Blocker) -> str:
    return f"GPU {blocker.gpu}"


def owners(blocker: Blocker) -> str:
    """The user of the quota or time window, as a possessive."""
    return f"{blocker.user}'s" if blocker.user else "the owner's"


def _owners_first(blocker: Blocker) -> str:
    """The possessive at the beginning of a sentence; a user name keeps its spelling."""
    return owners(blocker) if blocker.user else "The owner's"


def lower_first(words: str) -> str:
    return words[:1].lower() + words[1:]


def jobs(blocker: Blocker) -> str:
    ids = blocker.jobs
    if len(ids) < 2:
        return f"Job {ids[0]}" if ids else ""
    return f"Jobs {', '.join(map(str, ids[:-1]))} and {ids[-1]}"


def _count(number: float, word: str) -> str:
    return f"{number:g} {word}{'' if number == 1 else 's'}"


def _verb(number: int, singular: str, plural: str) -> str:
    return singular if number == 1 else plural


def _moment(at: datetime | str | None, blocker: Blocker) -> str:
    if at is None:
        return "at an unknown time"
    instant = datetime.fromisoformat(at) if isinstance(at, str) else at
    return moment(instant, blocker.detail("zone") or "UTC")


def _reason(blocker: Blocker) -> str:
    return blocker.detail("reason") or "An operator holds it."


def _backoff(blocker: Blocker) -> str:
    failures, refused = blocker.detail("failures"), blocker.detail("refused")
    times = "once" if failures == 1 else f"{failures} times"
    failure = f"could not be started ({refused})" if refused else f"failed {times}"
    return f"It {failure}; the next try is {_moment(blocker.until, blocker)}."


def _dependency(blocker: Blocker) -> str:
    done = "succeeded" if blocker.requested == "success" else "ended"
    if blocker.array is not None:
        return f"It starts after all jobs of array {blocker.array} have {done}."
    return f"It starts after job {blocker.job} has {done}."


def _outside_window(blocker: Blocker) -> str:
    whose, case = owners(blocker), blocker.detail("case")
    if case == "over":
        return f"{_owners_first(blocker)} time window is over."
    if case == "later":
        return f"{_owners_first(blocker)} time window begins {_moment(blocker.until, blocker)}."
    end = _moment(blocker.until, blocker)
    if case == "too long":
        return f"It would run past the end of {whose} time window, {end}."
    return f"Its run time is unknown, and {whose} time window ends {end}."


def _user_max_gpus(blocker: Blocker) -> str:
    most, has, wants = (blocker.detail(name) for name in ("most", "has", "wants"))
    if blocker.never:
        return f"It asks for {_count(wants, 'GPU')}; {owners(blocker)} quota allows {most}."
    return (
        f"{_owners_first(blocker)} quota allows {_count(most, 'GPU')} at a time; {has}"
        f" {_verb(has, 'is', 'are')} in use, and this job asks for {wants}."
    )


def _user_max_jobs(blocker: Blocker) -> str:
    most, has = blocker.detail("most"), blocker.detail("has")
    whose = _owners_first(blocker)
    if blocker.never:
        return f"{whose} quota allows no running jobs."
    return f"{whose} quota allows {_count(most, 'running job')}; {has} {_verb(has, 'runs', 'run')}."


def _user_max_memory(blocker: Blocker) -> str:
    most, has, wants = (blocker.detail(name) for name in ("most", "has", "wants"))
    if blocker.never:
        return f"It takes {size(wants)} of GPU memory; {owners(blocker)} quota allows {size(most)}."
    return (
        f"{_owners_first(blocker)} quota allows {size(most)} of GPU memory at a time;"
        f" {size(has)} is in use, and this job takes {size(wants)}."
    )


def _budget_day(blocker: Blocker) -> str:
    limit, left, needed = (blocker.detail(name) for name in ("limit", "left", "needed"))
    whose = _owners_first(blocker)
    if blocker.never:
        return (
            f"It may take {needed:g} GPU-minutes; {owners(blocker)} quota allows {limit:g} a day."
        )
    takes = "its run time is unknown" if needed is None else f"this job may take {needed:g}"
    return (
        f"{whose} quota has {left:g} of {limit:g} GPU-minutes left today, and {takes}."
        f" The day ends {blocker.detail('resets')}."
    )


def _share_of(blocker: Blocker, verb: str) -> str:
    gpus = _count(blocker.detail("gpus"), "GPU")
    figure = f"{blocker.detail('most'):g} of {gpus} for {blocker.detail('kind')} jobs"
    return f"{_owners_first(blocker)} {verb} {figure}"


def _share_use(blocker: Blocker) -> str:
    has, wants = blocker.detail("has"), blocker.detail("wants")
    return f"{has:g} {_verb(has, 'is', 'are')} in use, and this job takes {wants:g}."


def _share_reduced(blocker: Blocker) -> str:
    why, most = blocker.detail("why"), blocker.detail("most_pct")
    return (
        f"{blocker.detail('kind').capitalize()} jobs of one user may take {most:.3g} % of"
        f" {_gpu(blocker)} now{f' ({why})' if why else ''}; this job takes"
        f" {blocker.detail('wants_pct'):.3g} %."
    )


def _pressure(blocker: Blocker) -> str:
    kind = blocker.detail("kind")
    if blocker.gpu is not None:
        limit = blocker.detail("limit_pct")
        return f"{_gpu(blocker)} is more than {limit:.0f} % busy; no {kind} job joins it."
    subject = "no job starts" if blocker.detail("hard") else f"{kind} jobs wait"
    return f"The machine is under load ({blocker.detail('strains')}); {subject} until it is calm."


def _util_target(blocker: Blocker) -> str:
    why = blocker.detail("target") or "the GPUs are as busy as they should be."
    return f"No job joins the others on {_gpu(blocker)} now: {why}"


def _infeasible(blocker: Blocker) -> str:
    matching = blocker.detail("able")
    matches = (
        f"only {matching} match"
        if matching > 1
        else "only 1 matches"
        if matching
        else "none matches"
    )
    return f"It asks for {blocker.requested}; of {blocker.detail('all')} GPUs here {matches}."


def _reserved_for(blocker: Blocker) -> str:
    gpu, case = _gpu(blocker), blocker.detail("case")
    if case == "freed":
        return f"{gpu} was freed for job {blocker.job} and is reserved for it."
    if case == "window":
        name = f"{blocker.detail('part') or ''}{gpu}"
        if blocker.detail("starts") is None:
            return (
                f"{name} is reserved for {blocker.holder} until {_moment(blocker.until, blocker)}."
            )
        starts = _moment(blocker.detail("starts"), blocker)
        return (
            f"{name} is reserved for {blocker.holder} from {starts}; this job might still run then."
        )
    why = {
        "unknown": "how long this job runs is unknown",
        "drains": "that job has waited for long",
        "late": "this job might still run when that job can start",
    }[case]
    return f"{gpu} is reserved for job {blocker.job}, which is served first: {why}."


def _gpu_unsuitable(blocker: Blocker) -> str:
    if blocker.gpu is None:
        return f"Only {blocker.available} GPUs here match the request ({blocker.requested})."
    has = blocker.detail("has")
    actual = "that is not known" if has is None else f"it has {has}"
    return f"{_gpu(blocker)}: this job asks for {blocker.requested}; {actual}."


def _gpu_taken(blocker: Blocker) -> str:
    gpu, ours, case = _gpu(blocker), jobs(blocker), blocker.detail("case")
    runs = _verb(len(blocker.jobs), "runs", "run")
    if case == "exclusive":
        return f"{ours} {_verb(len(blocker.jobs), 'has', 'have')} {gpu} alone."
    if case == "wants alone":
        return f"{ours} {runs} on {gpu}, and this job asks for a GPU alone."
    if case == "foreign":
        return f"{blocker.detail('foreign')} on {gpu}, and this job asks for a GPU alone."
    if case == "undeclared":
        return f"{ours} on {gpu} did not declare GPU memory, so no other job joins it."
    return f"{ours} {runs} on {gpu}, and this job does not declare how much memory it needs."


def _gpu_memory(blocker: Blocker) -> str:
    free, holds = blocker.detail("free"), _holds(blocker)
    if blocker.detail("growth"):
        kept = blocker.detail("growth")
        holds += f", and {kept} are kept free in case processes outside the queue grow"
    asks = "this job asks for" if blocker.detail("declared") else "a job needs at least"
    return f"{_gpu(blocker)} has {free} free, {asks} {blocker.requested}{holds}."


def _too_full(blocker: Blocker) -> str:
    if blocker.detail("everywhere"):
        return f"No GPU has {blocker.requested} of memory free."
    foreign = blocker.detail("foreign")
    holds = f"; {foreign}" if foreign else ""
    return f"{_gpu(blocker)} has less than {blocker.requested} of memory free{holds}."


def _holds(blocker: Blocker) -> str:
    parts = [blocker.detail("foreign")] if blocker.detail("foreign") else []
    if blocker.jobs:
        verb = _verb(len(blocker.jobs), "has", "have")
        parts.append(f"{lower_first(jobs(blocker))} {verb} a part of it")
    return f"; {', '.join(parts)}" if parts else ""


def _memory_unknown(blocker: Blocker) -> str:
    gpu = _gpu(blocker)
    if blocker.detail("unsupported"):
        return f"{gpu} has no figure for its memory, so its free memory is not known."
    if blocker.detail("call"):
        return f"The free memory of {gpu} could not be read: {blocker.detail('call')}."
    return f"How much memory is free on {gpu} is not known."


def _gpu_locked(blocker: Blocker) -> str:
    refused = blocker.detail("refused")
    if refused:
        return f"{_gpu(blocker)} can't be used: {refused}."
    return f"{_gpu(blocker)} is locked by {blocker.holder}."


def _gpu_paused(blocker: Blocker) -> str:
    why = f": {blocker.detail('reason')}" if blocker.detail("reason") else "."
    return f"{_gpu(blocker)} is paused by {blocker.holder}{why}"


def _gpu_quarantined(blocker: Blocker) -> str:
    memory_bytes = blocker.detail("memory_bytes")
    memory = "memory" if memory_bytes is None else size(memory_bytes)
    job = blocker.detail("job_ref")
    return f"{_gpu(blocker)} is in quarantine: job {job} has ended, but its {memory} are not back."


def _compute_prohibited(blocker: Blocker) -> str:
    return (
        f"The compute mode of {_gpu(blocker)} is Prohibited, so no process can compute there"
        f" (nvidia-smi -i {blocker.gpu} -c DEFAULT admits them again)."
    )


def _compute_exclusive(blocker: Blocker) -> str:
    return (
        f"{blocker.holder} computes on {_gpu(blocker)}, whose compute mode admits one process at a"
        f" time (nvidia-smi -i {blocker.gpu} -c DEFAULT admits more)."
    )


def _owner_present(blocker: Blocker) -> str:
    owner = blocker.detail("who")
    if blocker.detail("leaving"):
        return f"{owner} was on {_gpu(blocker)} until just now; jobs start again if it stays away."
    return f"{owner} is on {_gpu(blocker)}; jobs start there again when it is gone."


_TEXTS: Mapping[Code, Callable[[Blocker], str]] = {
    Code.HELD: _reason,
    Code.TOO_MANY_REQUEUES: _reason,
    Code.INFEASIBLE: _infeasible,
    Code.ARRAY_LIMIT: lambda b: (
        f"At most {_count(b.detail('limit'), 'job')} of array {b.array} may run at a time."
    ),
    Code.BEGIN_TIME: lambda b: f"It does not start before {_moment(b.until, b)}.",
    Code.BACKOFF: _backoff,
    Code.DEPENDENCY: _dependency,
    Code.OUTSIDE_WINDOW: _outside_window,
    Code.USER_MAX_GPUS: _user_max_gpus,
    Code.USER_MAX_JOBS: _user_max_jobs,
    Code.USER_MAX_MEMORY: _user_max_memory,
    Code.USER_MAX_SHARE: lambda b: f"{_share_of(b, 'share is limited to')}; {_share_use(b)}",
    Code.BUDGET_DAY: _budget_day,
    Code.AGENT_MAX_JOBS: lambda b: (
        f"The agent {b.holder} may run {_count(b.detail('most'), 'job')} at a time."
    ),
    Code.AGENT_BUDGET: lambda b: (
        f"The agent {b.holder} has too few of its {b.detail('limit')} GPU-minutes of today left."
    ),
    Code.SHARE_EXCEEDED: lambda b: (
        f"{_share_of(b, 'share allows')} while other users wait; {_share_use(b)}"
    ),
    Code.SHARE_REDUCED: _share_reduced,
    Code.PRESSURE: _pressure,
    Code.UTIL_TARGET: _util_target,
    Code.NO_READING: lambda _: "The GPUs have not been read yet.",
    Code.STALE_READING: lambda b: (
        f"The last reading of the GPUs is older than {b.requested}, so no job is placed."
    ),
    Code.NO_GPU: lambda blocker: f"No GPU can be used now: {blocker.holder}",
    Code.CPU_PLACES: lambda b: f"All {b.detail('places')} places for jobs without a GPU are taken.",
    Code.DISK_FULL: disk_full,
    Code.HOST_MEMORY: host_memory,
    Code.HOST_CPUS: host_cpus,
    Code.GPU_COUNT: lambda b: (
        f"This job asks for {b.requested}; {b.detail('fitting') or 'none'} can take it now."
    ),
    Code.OTHER_GPUS: lambda b: (
        f"{_count(b.detail('count'), 'other GPU')} can't take it: {b.available}."
    ),
    Code.RESERVED_FOR: _reserved_for,
    Code.BATCH_EXCLUSIVE: lambda b: f"{_gpu(b)} is reserved for {b.holder} (exclusive mode).",
    Code.GPU_UNHEALTHY: lambda b: f"{_gpu(b)} can't be used: {b.detail('problem')}",
    Code.GPU_UNSUITABLE: _gpu_unsuitable,
    Code.GPU_TAKEN: _gpu_taken,
    Code.GPU_MEMORY: _gpu_memory,
    Code.MEMORY_UNKNOWN: _memory_unknown,
    Code.RAMPING: lambda b: (
        f"{_gpu(b)}: job {b.job} has just started and not yet taken its memory."
    ),
    Code.GPU_LOCKED: _gpu_locked,
    Code.GPU_PAUSED: _gpu_paused,
    Code.HOST_DRAINED: host_drained,
    Code.GPU_RESERVED: lambda b: f"{_gpu(b)} is reserved for the model {b.holder}.",
    Code.GPU_QUARANTINED: _gpu_quarantined,
    Code.GPU_UNCLEAR: lambda b: f"The state of {_gpu(b)} cannot be read now; see the log.",
    **dict.fromkeys(ENGINE_CODES, engine),
    Code.JOB_UNCLEAR: lambda _: "A fault keeps this job from being planned; see the log.",
    Code.COMPUTE_PROHIBITED: _compute_prohibited,
    Code.COMPUTE_EXCLUSIVE: _compute_exclusive,
    Code.OWNER_PRESENT: _owner_present,
}
_HEADLINES: Mapping[Code, Callable[[Blocker], str]] = {
    Code.USER_MAX_GPUS: lambda b: (
        ""
        if b.never
        else f"{_owners_first(b)} quota allows {_count(b.detail('most'), 'GPU')} at a time."
    ),
    Code.USER_MAX_JOBS: lambda b: (
        ""
        if b.never
        else f"{_owners_first(b)} quota allows {_count(b.detail('most'), 'running job')}."
    ),
    Code.USER_MAX_MEMORY: lambda b: (
        ""
        if b.never
        else f"{_owners_first(b)} quota allows {size(b.detail('most'))} of GPU memory at a time."
    ),
    Code.USER_MAX_SHARE: lambda b: (
        f"{_owners_first(b)} share is limited to {_count(b.detail('most'), 'GPU')}."
    ),
    Code.BUDGET_DAY: lambda b: (
        ""
        if b.never
        else f"{_owners_first(b)} quota has {b.detail('left'):g} GPU-minutes left today."
    ),
    Code.SHARE_EXCEEDED: lambda b: (
        f"It would exceed {owners(b)} share by {_count(b.detail('over'), 'GPU')}"
        " while other users wait."
    ),
    Code.SHARE_REDUCED: lambda b: (
        f"{_gpu(b)} is loaded by other users: one user may take"
        f" {b.detail('most_pct'):.3g} % of it now."
    ),
    Code.OTHER_GPUS: lambda b: f"{_count(b.detail('count'), 'GPU')} can't take it: {b.available}.",
    Code.GPU_MEMORY: _too_full,
}


# The end of a wait: who or what ends it. These sentences give no advice; changes that help are
# planned forward (`scheduler.queue.planner.forecasts`).


def condition(blocker: Blocker) -> str:
    """One sentence that says what ends this reason to wait."""
    if blocker.never:
        return _CHANGE_IT
    words = _CONDITIONS[blocker.code]
    return words if isinstance(words, str) else words(blocker)


def _when_outside_window(blocker: Blocker) -> str:
    if blocker.detail("case") == "over":
        return "It starts in the next time window of its owner."
    if blocker.detail("case") == "later":
        return "It starts in that time window."
    return "It starts in a time window that is long enough."


def _when_memory_unknown(blocker: Blocker) -> str:
    if blocker.detail("unsupported"):
        return "An administrator can state the memory in `gpu_memory_gib`."
    if blocker.detail("call"):
        return "The driver is asked again each second."
    return _OPERATOR


def _memory(blocker: Blocker) -> str:
    """A process outside the queue ends at a time that is not known."""
    if blocker.holder is not None and not blocker.jobs:
        return "It starts when that process gives memory back."
    return "It starts when enough memory is free."


def _taken(blocker: Blocker) -> str:
    if blocker.detail("case") == "foreign":
        return "It starts when that process has ended."
    several = len(blocker.jobs) > 1
    ends = "those jobs end" if several else "that job ends"
    if blocker.detail("leave_from"):
        those = "those jobs" if several else "that job"
        at = _moment(blocker.detail("leave_from"), blocker)
        return f"It starts when {ends}; from {at} on, {those} may be asked to leave."
    return f"It starts when {ends}."


_BY_ENGINE = {
    Tier.PERSON: "Its owner or an operator of the engine must change something.",
    Tier.NOT_YET: "It starts by itself when that is over.",
    Tier.MY_LIMITS: "The engine's limits of the owner allow no more now.",
    Tier.MACHINE: "An operator of the engine must look at its nodes.",
    Tier.CONTENTION: "The engine starts it when it is its turn.",
}
_CHANGE_IT = "Change the request, or cancel it."
_WHEN_FREE = "It starts when a GPU that matches becomes free."
_BY_ITSELF = "It starts by itself when that is over."
_WHEN_CALM = "It starts when the load falls."
_OPERATOR = "An operator must look at this GPU."
_ADMINISTRATOR = "An administrator must change the compute mode of this GPU."

_CONDITIONS: Mapping[Code, str | Callable[[Blocker], str]] = {
    Code.HELD: lambda b: f"{b.holder or 'An operator'} or an operator must release it.",
    Code.TOO_MANY_REQUEUES: "Its owner or an operator must release it.",
    Code.INFEASIBLE: _CHANGE_IT,
    Code.ARRAY_LIMIT: "It starts when another job of the array ends.",
    Code.BEGIN_TIME: "It starts by itself after that time.",
    Code.BACKOFF: "It is tried again by itself.",
    Code.DEPENDENCY: _BY_ITSELF,
    Code.OUTSIDE_WINDOW: _when_outside_window,
    Code.USER_MAX_GPUS: lambda b: f"It starts when enough of {owners(b)} jobs have ended.",
    Code.USER_MAX_JOBS: lambda b: f"It starts when one of {owners(b)} jobs ends.",
    Code.USER_MAX_MEMORY: lambda b: f"It starts when enough of {owners(b)} jobs have ended.",
    Code.BUDGET_DAY: lambda b: f"It starts after the day ends, {b.detail('resets')}.",
    Code.AGENT_MAX_JOBS: "It starts when another job of this agent ends.",
    Code.AGENT_BUDGET: "It starts tomorrow, or when its owner raises the limit on /account/.",
    Code.USER_MAX_SHARE: lambda b: f"It starts when enough of {owners(b)} jobs have ended.",
    Code.SHARE_EXCEEDED: lambda b: (
        f"It starts when one of {owners(b)} jobs ends, or when no user below the share waits."
    ),
    Code.SHARE_REDUCED: _WHEN_CALM,
    Code.PRESSURE: _WHEN_CALM,
    Code.UTIL_TARGET: "It starts when the utilisation falls.",
    Code.NO_READING: "It starts after the first reading of the GPUs.",
    Code.STALE_READING: "It starts after the next reading of the GPUs; see /status/.",
    Code.NO_GPU: "An operator must look at the GPUs of this machine.",
    Code.CPU_PLACES: "It starts when one of those jobs ends.",
    Code.HOST_MEMORY: "It starts when enough jobs have ended.",
    Code.HOST_CPUS: "It starts when enough jobs have ended.",
    Code.DISK_FULL: "Files there must be deleted, by their owners or a clean-up; see /disks/.",
    Code.GPU_COUNT: "It starts when enough GPUs are free.",
    Code.OTHER_GPUS: _WHEN_FREE,
    Code.RESERVED_FOR: "It starts when that reservation is over.",
    Code.BATCH_EXCLUSIVE: "It starts when the batch has ended; see /batches/.",
    Code.GPU_UNHEALTHY: _OPERATOR,
    Code.GPU_UNSUITABLE: _WHEN_FREE,
    Code.GPU_TAKEN: _taken,
    Code.GPU_MEMORY: _memory,
    Code.MEMORY_UNKNOWN: _when_memory_unknown,
    Code.RAMPING: _BY_ITSELF,
    Code.GPU_LOCKED: "It starts when the lock is released.",
    Code.GPU_PAUSED: "An operator must resume this GPU.",
    Code.HOST_DRAINED: "An operator must enable the host; see /hosts/.",
    Code.GPU_RESERVED: "An operator can change the role of the model.",
    Code.GPU_UNCLEAR: "It is tried again automatically.",
    Code.ENGINE_SUBMISSION: _BY_ITSELF,
    Code.ENGINE_REFUSED: "It is submitted again every minute.",
    Code.ENGINE_AWAY: "It continues by itself when the engine answers again.",
    Code.ENGINE_WAITS: lambda b: _BY_ENGINE[b.tier],
    Code.JOB_UNCLEAR: "It is tried again automatically.",
    Code.GPU_QUARANTINED: "An operator must end the process that holds the memory.",
    Code.COMPUTE_PROHIBITED: _ADMINISTRATOR,
    Code.COMPUTE_EXCLUSIVE: _ADMINISTRATOR,
    Code.OWNER_PRESENT: _BY_ITSELF,
}
