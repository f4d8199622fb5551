"""Lists of jobs with one line for each batch and array: that of its newest job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db.models import Count, Exists, Max, OuterRef, Q, QuerySet
from django.urls import reverse

from monitor.runtime.rows.extensions import is_on
from scheduler.models import BatchItem, Job


@dataclass(frozen=True, slots=True)
class Fold:
    """Jobs behind a line: how many there are with it, and the page that lists them."""

    jobs: int
    url: str


def folded(chosen: QuerySet[Job]) -> QuerySet[Job]:
    """Of each batch and of each array, the newest job only."""
    arrays = chosen.order_by().filter(array__isnull=False)
    of_arrays = arrays.values("array").annotate(newest=Max("pk")).values("newest")
    lines = chosen.filter(Q(array=None) | Q(pk__in=of_arrays))
    if not is_on("batches"):
        return lines
    of_batches = _items(chosen).values("batch").annotate(newest=Max("job")).values("newest")
    is_item = Exists(BatchItem.objects.filter(job=OuterRef("pk")))
    return lines.filter(~Q(is_item) | Q(pk__in=of_batches))


def folds_of(shown: Iterable[Job], chosen: QuerySet[Job], query: str) -> Mapping[int, Fold]:
    """By job: what its line stands for. `query`: of the list of all jobs of an array."""
    shown = list(shown)
    made = {}
    arrays = {job.array: job.pk for job in shown if job.array is not None}
    if arrays:
        counts = chosen.order_by().filter(array__in=arrays).values_list("array")
        for array, jobs in counts.annotate(Count("pk")):
            made[arrays[array]] = Fold(jobs, f"{reverse('jobs')}{query}&q=array+{array}")
    if is_on("batches"):
        of_shown = BatchItem.objects.filter(job__in=shown)
        batches = dict(of_shown.values_list("batch", "job"))
        of_batches = _items(chosen).filter(batch__in=batches).values_list("batch")
        for batch, jobs in of_batches.annotate(Count("job", distinct=True)):
            made[batches[batch]] = Fold(jobs, reverse("batch", args=[batch]))
    return {job: fold for job, fold in made.items() if fold.jobs > 1}


def _items(chosen: QuerySet[Job]) -> QuerySet[BatchItem]:
    return BatchItem.objects.order_by().filter(job__in=chosen.order_by().values("pk"))
