"""Page: the rules that people are judged by, in words."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from monitor import policies
from monitor.policy.catalogue import PROFILE_WORDS


@require_safe
def rules(request: HttpRequest) -> HttpResponse:
    """What holds here, and what of it is otherwise than usual?"""
    in_force = policies.InForce()
    listed = [
        {
            "name": name,
            "title": policies.title(name),
            "about": policies.about(name),
            "settings": in_force.settings(name),
        }
        for name in policies.registered()
    ]
    profile = policies.profile()
    context = {"listed": listed, "profile": profile, "profile_words": PROFILE_WORDS[profile]}
    return render(request, "monitor/rules.html", context)
