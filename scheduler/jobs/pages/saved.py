"""Saved views of the list of jobs: each user's own, checked when they are saved and when shown."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from monitor.api.input import posted_text
from monitor.facts.input_rules import character_problem
from scheduler.jobs.pages.table import JobFilters
from scheduler.models import SavedView

MOST_VIEWS = 12
LONGEST_NAME = 40
LONGEST_QUERY = 600
ALL = "?"


def views_of(person: User) -> list[SavedView]:
    return list(SavedView.objects.filter(user=person))


def checked(query: str) -> str:
    """The query of the same view with valid values only; no other part of it remains."""
    fields = QueryDict(query[:LONGEST_QUERY].removeprefix("?"))
    return JobFilters.from_query(fields.dict()).with_()


@require_POST
def save(request: HttpRequest) -> HttpResponse:
    """Name this view. A view with the same filters gets the new name."""
    person = cast(User, request.user)
    query = checked(request.POST.get("query", ""))
    name = " ".join(posted_text(request, "name", LONGEST_NAME).split())
    if not name or character_problem(name) or query == ALL:
        messages.error(
            request, f"Filter the list, and write a name of 1–{LONGEST_NAME} characters."
        )
    elif len(views_of(person)) >= MOST_VIEWS:
        messages.error(request, f"You have {MOST_VIEWS} saved views. Remove one first.")
    else:
        SavedView.objects.update_or_create(user=person, query=query, defaults={"name": name})
        messages.success(request, f"The view “{name}” is saved.")
    return redirect(reverse("jobs") + query)


@require_POST
def remove(request: HttpRequest) -> HttpResponse:
    query = checked(request.POST.get("query", ""))
    count, _ = SavedView.objects.filter(user=cast(User, request.user), query=query).delete()
    messages.success(request, "The view is removed." if count else "There is no such view.")
    return redirect(reverse("jobs") + query)
