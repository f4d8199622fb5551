"""Policy: waiting jobs that are alike to every gate and every GPU are looked at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from scheduler.blockers import Blocker
from scheduler.jobs import QueuedJob, Requirement
from scheduler.policy.gates import Ask


class Group:
    """Jobs that are alike, and those of them that wait. Once refused in a pass, always refused.

    kind: the same for equal requirements. lacks: nothing but GPUs keeps them. refusals: what gates
    said when `mark` jobs had been placed.
    """

    __slots__ = ("ask", "ids", "is_refused", "kind", "lacks", "mark", "refusals", "why")

    def __init__(self, ask: Ask, kind: int) -> None:
        self.ask = ask
        self.kind = kind
        self.mark = -1
        self.refusals: tuple[Blocker, ...] = ()
        self.why: tuple[Blocker, ...] = ()
        self.is_refused = False
        self.lacks = False
        self.ids: list[int] = []


class Groups:
    """Finds the group of a job; iterate for all."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, int, timedelta | None, bool], Group] = {}
        # Equal requirements are one; looked up by identity first, which is quicker.
        self._requirements: dict[Requirement, int] = {}
        self._known: dict[int, int] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(self._found.values())

    def of(self, job: QueuedJob) -> Group:
        """The jobs of the pass stay alive, so that no identity is used twice."""
        asked = job.requirement
        requirement = self._known.get(id(asked))
        if requirement is None:
            requirement = self._requirements.setdefault(asked, len(self._requirements))
            self._known[id(asked)] = requirement
        key = (job.owner, job.priority, requirement, job.lasts, job.preemptible)
        group = self._found.get(key)
        if group is None:
            ask = Ask(job.owner, job.priority, asked, job.lasts, job.preemptible)
            group = self._found[key] = Group(ask, requirement)
        return group
