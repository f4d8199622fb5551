"""Search for jobs, users and GPUs by name or number: a page, and JSON for the command palette."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from django.contrib.auth.models import User
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from monitor.facts.input_rules import is_number
from monitor.models import Gpu
from scheduler.models import Job

LONGEST, MOST_OF_A_KIND = 100, 8


@dataclass(frozen=True, slots=True)
class Result:
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
