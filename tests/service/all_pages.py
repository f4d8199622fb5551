"""A program for test_extensions.py: opens each page without arguments, and lists loaded modules.

It prints JSON: the status of each page by its path, and the names of the modules that the web
process and the loops load.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib import import_module

NO_PAGES = ("admin/", "login/", "logout/", "metrics", "healthz")


def paths() -> list[str]:
    """The addresses of pages without arguments."""
    from django.urls import URLPattern, get_resolver

    top = get_resolver().url_patterns
    patterns = [*top, *(part for app in top if not str(app.pattern) for part in app.url_patterns)]
    routes = [str(part.pattern) for part in patterns if isinstance(part, URLPattern)]
    return [f"/{route}" for route in routes if "<" not in route and not route.startswith(NO_PAGES)]


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    # As the web process and the cluster of tasks load it.
    import_module("gpucoord_site.asgi")
    import_module("gpucoord_site.service.loops").preload()
    pages = paths()
    modules = sorted(sys.modules)

    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client
    from django.test.utils import setup_test_environment

    setup_test_environment()
    logging.disable()
    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    statuses = {path: client.get(path).status_code for path in pages}
    json.dump({"pages": statuses, "modules": modules}, sys.stdout)


if __name__ == "__main__":
    main()
