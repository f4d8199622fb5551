"""Rows -> facts: what waiting jobs still wait for, kept from pass to pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scheduler.facts.jobs import DependencyKind, JobState, Outcome
from scheduler.lifecycle.rows.relations import chunks, is_met
from scheduler.models import Job, JobDependency

# The number of the job that is waited for, and whether for its end or its success.
Awaited = tuple[int, DependencyKind]
_KINDS = {kind.value: kind for kind in DependencyKind}


class UnmetDependencies:
    """The unmet dependencies of waiting jobs, kept from pass to pass.

    Dependencies are written with their job and never change, and one that is met stays met. So only
    those of new jobs are read, and the jobs that have ended since. `arrays`: the jobs that stand
    for their array. `unclear`: jobs with a dependency of an unknown kind.
    """

    def __init__(self) -> None:
        self._of: dict[int, tuple[Awaited, ...]] = {}
        # The outcomes of awaited jobs that have ended.
        self._ended: dict[int, str] = {}
        self.arrays: frozenset[int] = frozenset()
        self.unclear: set[int] = set()

    def of(self, job: int) -> tuple[Awaited, ...]:
        """The unmet dependencies of a job, by the number of the job that is waited for."""
        return self._of.get(job, ())

    def refresh(self, jobs: Collection[int]) -> None:
        """`jobs`: the waiting jobs that have dependencies."""
        waiting = set(jobs)
        for gone in self._of.keys() - waiting:
            del self._of[gone]
        self.unclear &= waiting
        self._read(sorted(waiting - self._of.keys()))
        met = self._met({dependency for pending in self._of.values() for dependency in pending})
        for job, pending in self._of.items() if met else ():
            if not met.isdisjoint(pending):
                self._of[job] = tuple(dependency for dependency in pending if dependency not in met)

    def _read(self, jobs: Sequence[int]) -> None:
        awaited: dict[int, list[Awaited]] = {job: [] for job in jobs}
        arrays: set[int] = set()
        for chunk in chunks(jobs):
            rows = JobDependency.objects.filter(job_id__in=chunk).order_by("on_id")
            for job, on, after, array in rows.values_list("job_id", "on_id", "after", "on__array"):
                if array == on:
                    arrays.add(on)
                if after in _KINDS:
                    awaited[job].append((on, _KINDS[after]))
                else:
                    self.unclear.add(job)
        self._of |= {job: tuple(pending) for job, pending in awaited.items()}
        self.arrays |= arrays

    def _met(self, awaited: Collection[Awaited]) -> set[Awaited]:
        numbers = {on for on, _ in awaited}
        if not numbers:
            return set()
        self.arrays &= numbers
        self._ended = {on: outcome for on, outcome in self._ended.items() if on in numbers}
        still_open = Job.objects.exclude(state=JobState.FINISHED.value).order_by()
        numbers -= set(still_open.values_list("pk", flat=True)) | self.arrays | self._ended.keys()
        for chunk in chunks(sorted(numbers)):
            # The dependencies of a deleted job were deleted with it.
            self._ended |= dict.fromkeys(chunk, Outcome.SUCCEEDED.value)
            self._ended |= dict(Job.objects.filter(pk__in=chunk).values_list("pk", "outcome"))
        unmet = _unmet_of_arrays(self.arrays)
        over = JobState.FINISHED.value
        return {
            (on, after)
            for on, after in awaited
            if (
                after not in unmet.get(on, ())
                if on in self.arrays
                else on in self._ended and is_met(after, over, self._ended[on])
            )
        }


def _unmet_of_arrays(arrays: Collection[int]) -> dict[int, set[DependencyKind]]:
    """The kinds of dependency that some job of each array does not meet yet."""
    unmet: dict[int, set[DependencyKind]] = {}
    rows = Job.objects.filter(array__in=arrays).order_by() if arrays else Job.objects.none()
    for array, state, outcome in rows.values_list("array", "state", "outcome").distinct():
        if array is not None:
            kinds = {after for after in DependencyKind if not is_met(after, state, outcome)}
            unmet[array] = unmet.get(array, set()) | kinds
    return unmet
