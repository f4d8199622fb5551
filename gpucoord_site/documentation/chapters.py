"""Which chapter explains a page: the target of the question mark in the head of each page."""

from __future__ import annotations

from django.http import HttpRequest

from gpucoord_site.documentation import library

# By the name of the page's address. A page without an entry opens the index.
CHAPTERS = {
    "dashboard": "users/first-job",
    "welcome": "users/first-job",
    "setup": "operators/installation",
    "people": "operators/security",
    "people-add": "operators/security",
    "people-person": "users/quotas",
    "timeline": "users/queue",
    "processes": "users/incidents",
    "process": "users/incidents",
    "gpu": "operators/monitoring",
    "jobs": "users/jobs",
    "job": "users/jobs",
    "job-new": "users/jobs",
    "models": "users/prompts",
    "model": "users/prompts",
    "model-add": "operators/models",
    "shares": "users/quotas",
    "windows": "users/time-windows",
    "window-ask": "users/time-windows",
    "incidents": "users/incidents",
    "incident": "users/incidents",
    "reports": "users/reports",
    "capacity": "operators/capacity",
    "batches": "users/batches",
    "batch": "users/batches",
    "scripts": "users/scripts",
    "script": "users/scripts",
    "idle-work": "operators/idle-work",
    "events": "events",
    "rules": "operators/thresholds",
    "mode": "operators/thresholds",
    "disks": "operators/disks",
    "disk-run": "operators/disks",
    "hosts": "operators/hosts",
    "host": "operators/hosts",
    "status": "operators/runbooks",
    "me": "users/quotas",
    "person": "users/quotas",
    "account": "users/agents",
    "notifications": "users/notifications",
    "api-docs": "reference/rest",
}


def chapter_of(request: HttpRequest) -> str:
    """The address of the chapter about this page."""
    match = request.resolver_match
    name = CHAPTERS.get(match.url_name or "") if match else None
    return library.url_of(name or library.INDEX)
