"""A program for test_extensions.py: opens each page, follows all links, and lists loaded modules.

It prints JSON: the status of each page without arguments by its path, the links to pages that are
not found with a page that has them, whether the dashboard shows the job of a batch, and the modules
that the web process and the loops load.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from html import unescape
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django.test import Client

NO_PAGES = ("admin/", "login/", "logout/", "metrics", "healthz")
LINK = re.compile(r'\shref="(/[^"#]*)')
# Files of a page, and doors that are no pages. The lists of the admin have links without end.
NOT_FOLLOWED = re.compile(r"/(static|api|admin|logout)/")


def paths() -> list[str]:
    """The addresses of pages without arguments."""
    from django.urls import URLPattern, get_resolver

    top = get_resolver().url_patterns
    patterns = [*top, *(part for app in top if not str(app.pattern) for part in app.url_patterns)]
    routes = [str(part.pattern) for part in patterns if isinstance(part, URLPattern)]
    return [f"/{route}" for route in routes if "<" not in route and not route.startswith(NO_PAGES)]


def follow(client: Client, pages: list[str]) -> tuple[dict[str, int], dict[str, str]]:
    """The statuses of these pages and of those behind links; for each link, a page that has it."""
    statuses: dict[str, int] = {}
    linked_from: dict[str, str] = {}
    left = pages[::-1]
    while left:
        path = left.pop()
        if path in statuses:
            continue
        answer = client.get(path)
        statuses[path] = answer.status_code
        if answer.status_code != 200 or not answer["Content-Type"].startswith("text/html"):
            continue
        for link in map(unescape, LINK.findall(answer.content.decode())):
            # A query of a page that was opened shows the same page.
            plain = link.partition("?")[0]
            if not NOT_FOLLOWED.match(plain):
                linked_from.setdefault(plain, path)
                left.append(plain)
    return statuses, linked_from


def rows_of_extensions(owner: User) -> int:
    """Rows that extensions have left: a model on a GPU, and an item of a batch, whose job waits.

    Returns the number of that job.
    """
    from django.contrib.auth.models import User
    from django.utils import timezone

    from monitor.facts.gpus import GpuState
    from monitor.gpus.rows import snapshot as snapshots
    from monitor.models import Claim
    from scheduler.facts.language_models import OWNER
    from scheduler.models import Batch, BatchItem, Job, ModelService
    from tests.builders import gpu, gpu_uuid, snapshot

    now = timezone.now()
    seen = snapshot([gpu(0, state=GpuState.LLM_READY, state_since=now)], at=now)
    snapshots.record(seen)
    model, item = (
        Job.objects.create(owner=owner, name=name, argv=["true"], submitted_at=now)
        for name in ("qwen", "an item")
    )
    User.objects.get_or_create(username=OWNER)
    Claim.objects.create(
        host=seen.host.name,
        gpu_uuid=gpu_uuid(0),
        job_ref=str(model.pk),
        owner=OWNER,
        kind="llm",
        phase="ready",
        task="qwen2.5:7b",
        from_at=now,
    )
    ModelService.objects.create(name="qwen2.5:7b", argv=["true"])
    batch = Batch.objects.create(owner=owner, name="batch", total_items=1, created_at=now)
    BatchItem.objects.create(batch=batch, index=0, input="a", job=item)
    return int(item.pk)


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    # As the web process and the cluster of tasks load it.
    import_module("gpucoord_site.asgi")
    import_module("gpucoord_site.service.slices").preload()
    pages = paths()
    modules = sorted(sys.modules)

    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client
    from django.test.utils import setup_test_environment

    setup_test_environment()
    logging.disable()
    call_command("migrate", verbosity=0)
    root = User.objects.create_superuser("root")
    item = rows_of_extensions(root)
    client = Client()
    client.force_login(root)
    statuses, linked_from = follow(client, pages)
    dead = {path: page for path, page in linked_from.items() if statuses[path] == 404}
    shows_item = f'href="/jobs/{item}/"' in client.get("/").content.decode()
    opened = {path: statuses[path] for path in pages}
    found = {"pages": opened, "modules": modules, "dead": dead, "shows_item": shows_item}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
