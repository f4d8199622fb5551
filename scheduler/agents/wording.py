"""Wording: the blockers of agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.facts.blockers import Blocker
from scheduler.facts.blockers import BlockerCode as Code


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
