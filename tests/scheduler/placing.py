"""A small language for placements.

Case().gpu("a", free="40GiB").job(1, wants="20GiB").expect(a=[1])
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from scheduler.facts.blockers import Blocker
from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.people import UserAccount
from scheduler.facts.plans import Holder, Plan, PlanPolicy, RunningJob, Slot, Slots, Throttle
from scheduler.facts.units import parse_bytes
from scheduler.queue.planner.placement import after_placement
from scheduler.queue.planner.plan import plan
from scheduler.queue.wording import text
from tests.builders import NOW, queued_job, slot


def _bytes(text: str) -> int:
    """A size such as "20GiB"; digits alone are bytes."""
    return int(text) if text.isdecimal() else parse_bytes(text)


class Case:
    """GPUs a, b, c… with indices 0, 1, 2…; jobs come one second after the other."""

    def __init__(self, *, cpu_places: int = 2, cpu_jobs: int = 0) -> None:
        self._policy = PlanPolicy(cpu_jobs=cpu_places)
        self._cpu_jobs = cpu_jobs
        self._gpus: dict[str, Slot] = {}
        self._jobs: list[QueuedJob] = []
        self._blocker: Blocker | None = None
        self._people: dict[str, UserAccount] = {}
        self._running: list[RunningJob] = []
        self._throttle = Throttle()

    def gpu(
        self,
        name: str,
        *,
        free: str | None = "80GiB",
        total: str = "80GiB",
        held_by: tuple[str, ...] = (),
        **changes: Any,
    ) -> Self:
        self._gpus[name] = slot(
            len(self._gpus),
            total_bytes=_bytes(total),
            free_bytes=None if free is None else 0 if free == "0" else _bytes(free),
            foreign=tuple(Holder(name=name, memory_bytes=2**30) for name in held_by),
            **changes,
        )
        return self

    def closed(self, blocker: Blocker) -> Self:
        self._blocker = blocker
        return self

    def person(self, owner: str, **changes: Any) -> Self:
        self._people[owner] = UserAccount(owner=owner, **changes)
        return self

    def throttled(self, **changes: Any) -> Self:
        self._throttle = Throttle(**changes)
        return self

    def job(
        self,
        id: int,
        *,
        wants: str | None = None,
        gpus: int = 1,
        exclusive: bool = False,
        priority: int = 3,
        after_s: float | None = None,
        kind: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Self:
        waited = len(self._jobs) if after_s is None else after_s
        self._jobs.append(
            queued_job(
                id,
                priority=priority,
                submitted_at=NOW + timedelta(seconds=waited),
                requirement=Requirement(
                    gpus=gpus,
                    memory_bytes=None if wants is None else _bytes(wants),
                    exclusive=exclusive,
                    **(kind or {}),
                ),
                **changes,
            )
        )
        return self

    def runs(
        self,
        id: int,
        on: str,
        *,
        since_h: float = 1,
        lasts_h: float | None = None,
        takes: str | None = None,
        **changes: Any,
    ) -> Self:
        """A job that has these GPUs ("ab"), alone unless it says what it takes of them."""
        alone = takes is None
        wants = None if takes is None else _bytes(takes)
        facts: dict[str, Any] = {"owner": "zoe", "priority": 3} | changes
        self._running.append(
            RunningJob(
                id=id,
                requirement=Requirement(gpus=len(on), memory_bytes=wants, exclusive=alone),
                gpu_uuids=tuple(self._gpus[name].gpu_uuid for name in on),
                started_at=NOW - timedelta(hours=since_h),
                lasts=None if lasts_h is None else timedelta(hours=lasts_h),
                **facts,
            )
        )
        for name in on:
            self._gpus[name] = after_placement(self._gpus[name], id, self._running[-1].requirement)
        return self

    def plan(self) -> Plan:
        slots = Slots(
            host="gpubox",
            gpus=tuple(self._gpus.values()),
            cpu_jobs=self._cpu_jobs,
            blocker=self._blocker,
            running=tuple(self._running),
            people=self._people,
            throttle=self._throttle,
        )
        return plan(self._jobs, slots, self._policy, NOW)

    def expect(self, waiting: dict[int, str] | None = None, **on: list[int]) -> Self:
        """Exactly these jobs on these GPUs (cpu=[…]: without one); the first reason of the rest."""
        made = self.plan()
        names = {gpu.gpu_uuid: name for name, gpu in self._gpus.items()}
        by_kind: dict[str, list[int]] = {}
        for placement in made.placements:
            for name in [names[uuid] for uuid in placement.gpu_uuids] or ["cpu"]:
                by_kind.setdefault(name, []).append(placement.job_id)
        assert by_kind == on
        assert {id_: reasons[0].code for id_, reasons in made.blockers.items()} == (waiting or {})
        return self

    def why(self, id: int) -> list[str]:
        return [text(blocker) for blocker in self.plan().blockers[id]]
