"""Page: GPU-hours of jobs by the values of a tag."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from monitor.facts.input_rules import character_problem
from reports.figures.facts import ReportRefused
from reports.figures.policy import periods
from reports.render.pages import LASTS
from reports.tags import actions

OF_ALL, OF_ME = "", "me"
USUAL = "30d"


@require_safe
def by_tag(request: HttpRequest) -> HttpResponse:
    """Shows a report, and the choice of tag, period and users. A wrong choice shows its reason."""
    query, now = request.GET, timezone.now()
    names = actions.tag_names()
    tag = query.get("tag") or (names[0] if names else "")
    last, user = query.get("last") or USUAL, query.get("user", OF_ALL)
    context: dict[str, Any] = {
        "tag": tag, "names": names, "lasts": LASTS, "last": last, "user_choice": user,
    }  # fmt: skip
    problem = _problem(tag, user)
    if not problem and tag:
        zone = timezone.get_current_timezone_name()
        try:
            period = periods.parse(last, "", "", zone, now)
        except ReportRefused as refused:
            problem = str(refused)
        else:
            name = request.user.get_username() if user == OF_ME else ""
            context["report"] = actions.report(tag, period, name, now)
            context["rows"] = [
                value
                | {"used_pct": _pct(value["efficiency"]), "known_pct": _pct(value["coverage"])}
                for value in context["report"]["values"]
            ]
    status = 422 if problem else 200
    return render(request, "reports/tags.html", context | {"problem": problem}, status=status)


def _problem(tag: str, user: str) -> str:
    if len(tag) > actions.LONGEST_NAME or character_problem(tag):
        return f"A tag has a name of at most {actions.LONGEST_NAME} printable characters."
    return "" if user in (OF_ALL, OF_ME) else "Choose all users or your own jobs."


def _pct(part: float | None) -> float | None:
    return None if part is None else 100 * part
