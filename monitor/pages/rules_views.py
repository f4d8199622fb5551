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
    topics = {
        topic: [
            {
                "name": name,
                "title": policies.title(name),
                "about": policies.about(name),
                "settings": in_force.settings(name),
            }
            for name in names
        ]
        for topic, names in policies.by_topic().items()
    }
    profile = policies.profile()
    context = {"topics": topics, "profile": profile, "profile_words": PROFILE_WORDS[profile]}
    return render(request, "monitor/rules.html", context)
