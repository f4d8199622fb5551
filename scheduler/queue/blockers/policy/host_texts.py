"""Policy: sentences about blockers of the host (memory, CPUs, file systems) and of agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.facts.blockers import Blocker, BlockerCode
from scheduler.facts.blockers import BlockerCode as Code
from scheduler.facts.units import size


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
    BlockerCode.ENGINE_SUBMISSION,
    BlockerCode.ENGINE_REFUSED,
    BlockerCode.ENGINE_AWAY,
    BlockerCode.ENGINE_WAITS,
)
_ENGINE_VERBS = {
    BlockerCode.ENGINE_REFUSED: "refuses it",
    BlockerCode.ENGINE_AWAY: "does not answer",
    BlockerCode.ENGINE_WAITS: "says",
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


def _max_jobs(blocker: Blocker) -> str:
    most = blocker.detail("most")
    return f"The agent {blocker.holder} may run {most} job{'' if most == 1 else 's'} at a time."


def _budget(blocker: Blocker) -> str:
    limit = blocker.detail("limit")
    return f"The agent {blocker.holder} has too few of its {limit} GPU-minutes of today left."


SENTENCES: Mapping[Code, Callable[[Blocker], str]] = {
    Code.AGENT_MAX_JOBS: _max_jobs,
    Code.AGENT_BUDGET: _budget,
}
