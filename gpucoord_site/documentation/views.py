"""The pages below /docs/: chapters of the documentation, their search, and the command line."""

from __future__ import annotations

from typing import cast

from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from gpucoord_site import welcome
from gpucoord_site.cli.main import COMMANDS
from gpucoord_site.documentation import library

LONGEST_SEARCH = 200


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """The index, or the sections that have the words of `q`."""
    text = request.GET.get("q", "")[:LONGEST_SEARCH].strip()
    if not text:
        return chapter(request, library.INDEX)
    context = {"q": text, "hits": library.search(text), "most": library.MOST_HITS}
    return render(request, "docs/search.html", context | _common())


@require_safe
def chapter(request: HttpRequest, name: str) -> HttpResponse:
    try:
        shown = library.chapter(name)
    except library.NoChapter:
        raise Http404(f"There is no chapter {name}.") from None
    before, after = library.neighbours(name)
    context = {
        "chapter_shown": shown,
        "before": before,
        "after": after,
    }
    return render(request, "docs/chapter.html", context | _common())


@require_safe
def command_line(request: HttpRequest) -> HttpResponse:
    """The commands, with the address of this server and the accounts of this user."""
    config = settings.CONFIG
    context = {
        "address": config.public_url or request.build_absolute_uri("/").rstrip("/"),
        "node": config.node,
        "account": welcome.terminal_account(cast("User", request.user)),
        "commands": [(name, text) for name, (text, _) in COMMANDS.items()],
    }
    return render(request, "docs/command_line.html", context | _common())


def _common() -> dict[str, object]:
    groups: dict[str, list[library.Entry]] = {}
    for entry in library.index():
        groups.setdefault(entry.group, []).append(entry)
    return {"groups": list(groups.items())}
