"""The page of all jobs: what the address asks for, and the lines that answer it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet

from scheduler import outlook, viewing
from scheduler.jobs import JobState, Outcome
from scheduler.models import Job
from scheduler.pages import job_lines
from scheduler.pages.job_lines import JobLine
from scheduler.pages.regions import in_order
from scheduler.policy.forecast import Estimate

PER_PAGE = 50
STATES = {"open": "Queue", "finished": "Finished", "failed": "Failed", "all": "All"}
BAD_ENDS = tuple(
    outcome.value for outcome in Outcome if outcome not in (Outcome.SUCCEEDED, Outcome.CANCELLED)
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the address asks for; what it doesn't know is left out."""

    who: str = "all"
    state: str = "open"
    text: str = ""
    page: str = "1"

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Wanted:
        state = query.get("state", "open")
        return cls(
            who="mine" if query.get("who") == "mine" else "all",
            state=state if state in STATES else "open",
            text=query.get("q", "").replace("\0", "").strip()[:100],
            page=query.get("page", "1"),
        )

    def with_(self, **changes: str) -> str:
        """The query of the same view with something changed, from its first page on."""
        asked = {"who": self.who, "state": self.state, "q": self.text, "page": "1"} | changes
        default = {"who": "all", "state": "open", "q": "", "page": "1"}
        rest = {name: value for name, value in asked.items() if value != default[name]}
        return f"?{urlencode(rest)}"

    @property
    def states(self) -> list[tuple[str, str, bool]]:
        return [
            (self.with_(state=name), words, name == self.state) for name, words in STATES.items()
        ]

    @property
    def people(self) -> list[tuple[str, str, bool]]:
        names = {"all": "Everybody", "mine": "Mine"}
        return [(self.with_(who=name), words, name == self.who) for name, words in names.items()]


@dataclass(frozen=True, slots=True)
class Table:
    """One page of lines. `any_at_all`: False on a server that never had a job."""

    lines: list[JobLine]
    page: Page[Job]
    before: str | None
    after: str | None
    any_at_all: bool


@dataclass(frozen=True, slots=True)
class Next:
    """The one of a person's waiting jobs that is served first. waiting: how many jobs wait."""

    line: JobLine
    estimate: Estimate | None
    waiting: int


def table(wanted: Wanted, person: User) -> Table:
    page = Paginator(_chosen(wanted, person), PER_PAGE).get_page(wanted.page)
    number = page.number
    return Table(
        lines=job_lines.lines(page.object_list),
        page=page,
        before=wanted.with_(page=str(number - 1)) if page.has_previous() else None,
        after=wanted.with_(page=str(number + 1)) if page.has_next() else None,
        any_at_all=bool(page.object_list) or Job.objects.exists(),
    )


def next_of(person: User, now: datetime) -> Next | None:
    """When will mine start? None when none of theirs waits."""
    waiting = in_order(Job.objects.filter(state=JobState.QUEUED.value))
    mine = list(waiting.filter(owner=person).values_list("pk", flat=True))
    if not mine:
        return None
    estimates = outlook.estimates(now)
    first = min(mine, key=lambda pk: _place(estimates.get(pk)))
    job = Job.objects.select_related("owner").get(pk=first)
    return Next(job_lines.lines([job])[0], estimates.get(first), waiting.count())


def _place(estimate: Estimate | None) -> float:
    """Of equal ones the first in order comes first; who can't be served now, last."""
    return math.inf if estimate is None or estimate.position is None else estimate.position


def _chosen(wanted: Wanted, person: User) -> QuerySet[Job]:
    found = viewing.filtered("" if wanted.state == "all" else _state(wanted.state), "")
    if wanted.who == "mine":
        found = found.filter(owner=person)
    if wanted.state == "failed":
        found = found.filter(outcome__in=BAD_ENDS)
    if wanted.text:
        found = found.filter(_matches(wanted.text))
    return in_order(found) if wanted.state == "open" else found


def _state(name: str) -> str:
    return JobState.FINISHED.value if name == "failed" else name


def _matches(text: str) -> Q:
    matches = Q(name__icontains=text) | Q(owner__username__icontains=text)
    array = text.removeprefix("array ").strip()
    if text.startswith("array ") and array.isdecimal() and len(array) < 18:
        return Q(array=array)
    number = text.removeprefix("job").strip().removeprefix("#")
    return matches | Q(pk=number) if number.isdecimal() and len(number) < 18 else matches
