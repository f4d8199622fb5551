"""Policy: memory and CPUs of the host that jobs reserve at their placement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monitor.facts.thresholds import percent, threshold
from scheduler.facts.blockers import Blocker, BlockerCode, details
from scheduler.facts.jobs import Requirement
from scheduler.facts.plans import PlanPolicy, RunningJob
from scheduler.facts.units import size

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPolicy:
    """Host memory and CPUs that jobs reserve at their placement."""

    # fmt: off
    memory_pct: float = percent(100.0, "Memory for jobs",
        "Part of the host's memory that running jobs may reserve together. 0 = jobs reserve none.")
    cpus_pct: float = threshold(100.0, "CPUs for jobs", unit="%", ge=0, le=10_000,
        help="Part of the host's CPUs that running jobs may reserve together; more than 100 "
             "overcommits. 0 = jobs reserve none.")
    default_memory_gib: float = threshold(0.0, "Memory of undeclared jobs", unit="GiB", ge=0,
        le=100_000, help="Reserved by a job that declares no host memory. 0 = nothing.")
    default_cpus: float = threshold(0.0, "CPUs of undeclared jobs", ge=0, le=10_000,
        help="Reserved by a job that declares no CPUs. 0 = nothing.")
    # fmt: on


class HostRoom:
    """What jobs may still reserve of the host; it shrinks with each placement of a pass."""

    def __init__(
        self, policy: PlanPolicy, rules: HostPolicy, running: Iterable[RunningJob]
    ) -> None:
        self._rules = rules
        memory, cpus = policy.host_memory_bytes, policy.host_cpus
        self.memory = None if memory is None else memory * rules.memory_pct / 100
        self.cpus = None if cpus is None else cpus * rules.cpus_pct / 100
        self.reserved_memory = self.reserved_cpus = 0.0
        for job in running:
            self.take(job.requirement)

    def take(self, requirement: Requirement) -> None:
        self.reserved_memory += self._memory_of(requirement)
        self.reserved_cpus += self._cpus_of(requirement)

    def lacks(self, requirement: Requirement) -> tuple[Blocker, ...]:
        """Why such a job finds no room on the host."""
        wants, cpus = self._memory_of(requirement), self._cpus_of(requirement)
        blockers: tuple[Blocker, ...] = ()
        if wants and self.memory and self.reserved_memory + wants > self.memory:
            blockers += (self._memory_blocker(wants),)
        if cpus and self.cpus and self.reserved_cpus + cpus > self.cpus:
            blockers += (self._cpus_blocker(cpus),)
        return blockers

    def _memory_of(self, requirement: Requirement) -> float:
        declared = requirement.host_memory_bytes
        return self._rules.default_memory_gib * GIB if declared is None else declared

    def _cpus_of(self, requirement: Requirement) -> float:
        return self._rules.default_cpus if requirement.cpus is None else requirement.cpus

    def _memory_blocker(self, wants: float) -> Blocker:
        whole = self.memory or 0.0
        free = max(0.0, whole - self.reserved_memory)
        return Blocker(
            code=BlockerCode.HOST_MEMORY,
            requested=size(int(wants)),
            available=size(int(free)),
            never=wants > whole,
            details=details(wants=int(wants), free=int(free), whole=int(whole)),
        )

    def _cpus_blocker(self, wants: float) -> Blocker:
        whole = self.cpus or 0.0
        free = max(0.0, whole - self.reserved_cpus)
        return Blocker(
            code=BlockerCode.HOST_CPUS,
            requested=f"{wants:g} CPUs",
            available=f"{free:g} CPUs",
            never=wants > whole,
            details=details(wants=wants, free=free, whole=whole),
        )
