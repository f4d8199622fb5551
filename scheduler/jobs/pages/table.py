"""Content of the page of all jobs: filters from the query, and the matching lines.

Search for jobs, users and GPUs by name or number: a page, and JSON for the command palette.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import (
    Case,
    Count,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    IntegerField,
    Max,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Value,
    When,
)
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe
from msgspec import Struct
from msgspec.structs import asdict

from monitor.facts.input_rules import is_number
from monitor.models import Gpu
from monitor.pages.frames import Context, Region, register
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.extensions import is_on, parts
from scheduler.dispatch.steps import controller as idle_gpu_step
from scheduler.dispatch.steps import preview
from scheduler.facts.jobs import JobState, Outcome
from scheduler.jobs.pages import serialise as job_views
from scheduler.jobs.pages import timeline as timeline_pages
from scheduler.jobs.pages.serialise import JobLine
from scheduler.jobs.rows import relations
from scheduler.limits.throttle.pages import MODE_REGION, REGION
from scheduler.models import BatchItem, Job
from scheduler.queue.planner.forecasts import Estimate

# Lists of jobs with one line for each batch and array: that of its newest job.


class Fold(Struct, frozen=True):
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


PER_PAGE = 50
STATES = {"open": "Queue", "finished": "Finished", "failed": "Failed", "all": "All"}
# Sort key of the address -> columns
SORTS: dict[str, tuple[str, ...]] = {
    "job": ("id",),
    "owner": ("owner__username", "id"),
    "state": ("state", "outcome", "id"),
    "priority": ("priority", "id"),
    "start": ("predicted_start_at", "id"),
    "took": ("took", "id"),
    "submitted": ("submitted_at", "id"),
}
BAD_OUTCOMES = tuple(
    outcome.value for outcome in Outcome if outcome not in (Outcome.SUCCEEDED, Outcome.CANCELLED)
)


class JobFilters(Struct, frozen=True):
    """Filters from the query. Unknown values are ignored."""

    owners: str = "all"
    state: str = "open"
    text: str = ""
    page: str = "1"
    # A key of SORTS, with "-" for the highest first; "" = queue order, or newest first.
    sort: str = ""

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> JobFilters:
        state = query.get("state", "open")
        return cls(
            owners="mine" if query.get("who") == "mine" else "all",
            state=state if state in STATES else "open",
            text=query.get("q", "").replace("\0", "").strip()[:100],
            page=query.get("page", "1"),
            sort=sort if (sort := query.get("sort", "")).removeprefix("-") in SORTS else "",
        )

    def with_(self, **changes: str) -> str:
        """The query with these changes, from the first page on."""
        fields = {
            "who": self.owners,
            "state": self.state,
            "q": self.text,
            "sort": self.sort,
            "page": "1",
        } | changes
        default = {"who": "all", "state": "open", "q": "", "sort": "", "page": "1"}
        rest = {name: value for name, value in fields.items() if value != default[name]}
        return f"?{urlencode(rest)}"

    @property
    def here(self) -> str:
        """The query of this view, with its page."""
        return self.with_(page=self.page)

    @property
    def states(self) -> list[tuple[str, str, bool]]:
        return [
            (self.with_(state=name), words, name == self.state) for name, words in STATES.items()
        ]

    @property
    def people(self) -> list[tuple[str, str, bool]]:
        names = {"all": "All users", "mine": "Mine"}
        return [(self.with_(who=name), words, name == self.owners) for name, words in names.items()]


class JobTable(Struct, frozen=True):
    """One page of lines, each with its predicted start if it waits, and the jobs it stands for.

    `groups`: batches and arrays whose open jobs have no lines here. `any_at_all`: False on a server
    that never had a job.
    """

    groups: list[Group]
    lines: list[tuple[JobLine, Estimate | None, Fold | None]]
    page: Page[Job]
    before: str | None
    after: str | None
    any_at_all: bool


class Next(Struct, frozen=True):
    """The waiting job of a user that is served first. waiting: number of all waiting jobs."""

    line: JobLine
    estimate: Estimate | None
    waiting: int


def _pages(chosen: QuerySet[Job]) -> Paginator[Job]:
    """Jobs that fit on one page need not be counted in the database."""
    first = list(chosen[: PER_PAGE + 1])
    return Paginator(first if len(first) <= PER_PAGE else chosen, PER_PAGE)


def table(filters: JobFilters, person: User, now: datetime) -> JobTable:
    shown, chosen = _groups(filters, person, now), _chosen(filters, person, now)
    if shown:
        chosen = chosen.exclude(_is_in(shown))
    is_folded = filters.state != "open" and not (filters.text or filters.sort)
    page = _pages(folded(chosen) if is_folded else chosen).get_page(filters.page)
    folds = folds_of(page.object_list, chosen, filters.with_()) if is_folded else {}
    number = page.number
    lines = job_views.lines(page.object_list)
    estimates = preview.estimates(now) if any(line.waits for line in lines) else {}
    return JobTable(
        groups=shown if page.number == 1 else [],
        lines=[(line, estimates.get(line.id), folds.get(line.id)) for line in lines],
        page=page,
        before=filters.with_(page=str(number - 1)) if page.has_previous() else None,
        after=filters.with_(page=str(number + 1)) if page.has_next() else None,
        any_at_all=bool(page.object_list) or Job.objects.exists(),
    )


def _groups(filters: JobFilters, person: User, now: datetime) -> list[Group]:
    """In the queue as it is. A search or an order of the user's own shows each job."""
    if filters.state != "open" or filters.text or filters.sort:
        return []
    mine = person.username if filters.owners == "mine" else None
    return [group for group in groups(now) if mine in (None, group.owner)]


def _is_in(shown: Sequence[Group]) -> Q:
    batches = [group.batch for group in shown if group.batch]
    items = BatchItem.objects.filter(batch__in=batches, job__isnull=False).values("job")
    arrays = [group.array for group in shown if group.array]
    return Q(pk__in=items) | Q(array__in=arrays, array__isnull=False)


def next_of(person: User, now: datetime) -> Next | None:
    """The user's next job. None: no job of this user waits."""
    waiting = in_order(Job.objects.filter(state=JobState.QUEUED.value))
    own = list(waiting.filter(owner=person).values_list("pk", flat=True))
    if not own:
        return None
    estimates = preview.estimates(now)
    first = min(own, key=lambda pk: _place(estimates.get(pk)))
    job = Job.objects.select_related("owner").get(pk=first)
    return Next(job_views.lines([job])[0], estimates.get(first), waiting.count())


def _place(estimate: Estimate | None) -> float:
    """Jobs without a position come last."""
    return math.inf if estimate is None or estimate.position is None else estimate.position


def _chosen(filters: JobFilters, person: User, now: datetime) -> QuerySet[Job]:
    chosen = job_views.filtered(
        job_views.JobFilter(state="" if filters.state == "all" else _state(filters.state))
    )
    if filters.owners == "mine":
        chosen = chosen.filter(owner=person)
    if filters.state == "failed":
        chosen = chosen.filter(outcome__in=BAD_OUTCOMES)
    if filters.text:
        chosen = chosen.filter(_matches(filters.text))
    if filters.sort:
        return _sorted(chosen, filters.sort, now)
    return in_order(chosen) if filters.state == "open" else chosen


def _sorted(chosen: QuerySet[Job], sort: str, now: datetime) -> QuerySet[Job]:
    """Jobs without a value come last in both directions."""
    columns = [F(column) for column in SORTS[sort.removeprefix("-")]]
    if "took" in sort:
        took = Coalesce("ended_at", Value(now)) - F("started_at")
        chosen = chosen.annotate(took=ExpressionWrapper(took, DurationField()))
    if sort.startswith("-"):
        return chosen.order_by(*(column.desc(nulls_last=True) for column in columns))
    return chosen.order_by(*(column.asc(nulls_last=True) for column in columns))


def _state(name: str) -> str:
    return JobState.FINISHED.value if name == "failed" else name


def _matches(text: str) -> Q:
    matches = Q(name__icontains=text) | Q(owner__username__icontains=text)
    array = text.removeprefix("array ").strip()
    if text.startswith("array ") and is_number(array):
        return Q(array=array)
    number = text.removeprefix("job").strip().removeprefix("#")
    return matches | Q(pk=number) if is_number(number) else matches


LONGEST, MOST_OF_A_KIND = 100, 8


class Result(Struct, frozen=True):
    """kind: "job", "user" or "GPU"."""

    kind: str
    label: str
    url: str


@require_safe
def search(request: HttpRequest) -> HttpResponse:
    text = request.GET.get("q", "").strip()[:LONGEST]
    results = list(find(text)) if text else []
    if "application/json" in request.headers.get("Accept", ""):
        return JsonResponse({"results": [asdict(result) for result in results]})
    context = {"text": text, "results": results, "most": MOST_OF_A_KIND}
    return render(request, "scheduler/search.html", context)


def find(text: str) -> Iterator[Result]:
    """At most MOST_OF_A_KIND jobs (newest first), users and GPUs each; the page says so."""
    number = text.lower().removeprefix("job").removeprefix("gpu").strip().removeprefix("#")
    jobs = Q(name__icontains=text)
    gpus = Q(uuid__icontains=text) | Q(name__icontains=text) | Q(host__icontains=text)
    if is_number(number) and int(number) < 2**31:
        jobs |= Q(pk=int(number))
        gpus |= Q(index=int(number))
    rows = Job.objects.filter(jobs).order_by("-pk").values_list("pk", "name", "owner__username")
    for pk, name, owner in rows[:MOST_OF_A_KIND]:
        yield Result("job", f"{pk} {name} ({owner})", reverse("job", args=[pk]))
    people = User.objects.filter(username__icontains=text, is_active=True).order_by("username")
    for name in people.values_list("username", flat=True)[:MOST_OF_A_KIND]:
        yield Result("user", name, reverse("person", args=[name]))
    gpus_found = Gpu.objects.filter(gpus).order_by("host", "index")
    for uuid, index, model, host in gpus_found.values_list("uuid", "index", "name", "host")[
        :MOST_OF_A_KIND
    ]:
        yield Result("GPU", f"GPU {index} of {host}, {model}", reverse("gpu", args=[uuid]))


# The dashboard's region "queue": running and waiting work, the same for all viewers.


MOST_LINES, OWN_LINES, MOST_GROUPS = 8, 3, 6
# Lines beyond the first ones are looked for among so many jobs.
MOST_LOOKED_AT = 200
WAITING_LAST = Case(
    When(state=JobState.QUEUED.value, then=Value(1)),
    default=Value(0),
    output_field=IntegerField(),
)


PRIORITY_OF_WAITING = Case(
    When(state=JobState.QUEUED.value, then=-F("priority")),
    default=Value(0),
    output_field=IntegerField(),
)
BEGIN = Case(
    When(state=JobState.QUEUED.value, then=F("submitted_at")),
    default=F("started_at"),
)


class Group(Struct, frozen=True):
    """A running batch, or an array with open jobs, as one line. ended: of all its jobs or items.

    ends_at: the expected end; None: unknown. array, batch: its number; None: it is the other.
    """

    url: str
    name: str
    owner: str
    ended: int
    total: int
    failed: int = 0
    ends_at: datetime | None = None
    array: int | None = None
    batch: int | None = None


class Queue(Struct, frozen=True):
    """Running jobs, the longest running first, then waiting jobs in queue order.

    Jobs of `groups` have no lines of their own, nor have running models, which the board names.
    own: further lines, each shown to its owner only.
    """

    running: int
    groups: tuple[Group, ...]
    lines: tuple[JobLine, ...]
    own: tuple[JobLine, ...]


def in_order(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Running jobs first, then waiting jobs in queue order."""
    return jobs.order_by(WAITING_LAST, "-priority", "submitted_at", "id")


def calm_order(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """The order of the dashboard: a job that starts or ends moves as few lines as possible."""
    begin = BEGIN.asc(nulls_last=True)
    return jobs.order_by(WAITING_LAST, PRIORITY_OF_WAITING, begin, "id")


def load(now: datetime) -> Context:
    counts = dict(_counts())
    waiting = counts.pop(JobState.QUEUED.value, 0)
    running = sum(counts.values())
    lines, own = _job_lines() if waiting or running else ((), ())
    return {
        "queue": Queue(running, groups(now), lines, own),
        "waiting_jobs": waiting,
        "startable_jobs": len(idle_gpu_step.waiting_jobs()) if waiting else 0,
    }


def _job_lines() -> tuple[tuple[JobLine, ...], tuple[JobLine, ...]]:
    """The first lines, and then those that only their owners see."""
    is_item = Exists(BatchItem.objects.filter(job=OuterRef("pk")))
    runs_model = Q(model_service__isnull=False) & ~Q(state=JobState.QUEUED.value)
    open_jobs = job_views.filtered(job_views.JobFilter(state="open"))
    alone = calm_order(open_jobs.filter(array=None))
    # Other parts of the page show these, unless their extension is off.
    if is_on("batches"):
        alone = alone.exclude(is_item)
    if is_on("models"):
        alone = alone.exclude(runs_model)
    first = list(alone[:MOST_LINES])
    further = _further(alone, first) if len(first) == MOST_LINES else []
    lines = tuple(job_views.lines([*first, *further]))
    return lines[: len(first)], lines[len(first) :]


def _further(alone: QuerySet[Job], first: Sequence[Job]) -> QuerySet[Job]:
    """The first few of each owner that are not among these."""
    per_owner = Counter(job.owner_id for job in first)
    chosen = []
    for pk, owner in alone[MOST_LINES:MOST_LOOKED_AT].values_list("pk", "owner_id"):
        per_owner[owner] += 1
        if per_owner[owner] <= OWN_LINES:
            chosen.append(pk)
    return calm_order(job_views.jobs().filter(pk__in=chosen))


def groups(now: datetime) -> tuple[Group, ...]:
    """The oldest running batches and arrays with open jobs."""
    batches = (
        Group(
            url=reverse("batch", args=[batch.id]),
            name=batch.name,
            owner=batch.owner,
            ended=batch.completed + batch.failed,
            total=batch.total,
            failed=batch.failed,
            ends_at=batch.eta,
            batch=batch.id,
        )
        for running in parts("scheduler.submission.batches.pages:running")
        for batch in running(now)
    )
    return (*batches, *map(_of_array, _first_of_arrays()))


@compiled_once
def _first_of_arrays() -> QuerySet[Job]:
    """A job of each array that has open jobs."""
    open_jobs = Job.objects.exclude(state=JobState.FINISHED.value).filter(array__isnull=False)
    firsts = open_jobs.order_by().values("array").annotate(first=Min("id")).values("first")
    return Job.objects.filter(pk__in=firsts).select_related("owner").order_by("pk")[:MOST_GROUPS]


def _of_array(job: Job) -> Group:
    array = relations.array_of(job)
    ended = array.size - array.waiting - array.running if array else 0
    return Group(
        url=f"{reverse('jobs')}?q=array+{job.array}",
        name=job.name,
        owner=job.owner.username,
        ended=ended,
        total=array.size if array else 0,
        failed=ended - array.succeeded if array else 0,
        array=job.array,
    )


@compiled_once
def _counts() -> QuerySet[Any, tuple[str, int]]:
    open_jobs = Job.objects.exclude(state=JobState.FINISHED.value)
    return open_jobs.order_by().values_list("state").annotate(Count("id"))


def register_regions() -> None:
    register(MODE_REGION)
    register(REGION)
    register(timeline_pages.REGION)
    register(Region("queue", "scheduler/_queue.html", load, is_right=True))
