"""A start loads only what the first live frame needs, and children share it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
# With the first request of REST, the first script, TLS, and a client: none is needed to begin.
LATER = {"ninja", "jsonschema", "OpenSSL", "pycparser", "httpx", "twisted.trial"}
LOADED = """
import sys
from importlib import import_module
import django
django.setup()
for name in ("gpucoord_site.service.startup", "gpucoord_site.urls", "gpucoord_site.service.web"):
    import_module(name)
from django.urls import reverse
reverse("jobs")
print(*sys.modules, sep="\\n")
"""
FORKED = """
import os, re, sys
import django
django.setup()
from django.db import connection
from django.contrib.auth.models import User
from gpucoord_site.service import startup
startup._load()
if os.fork() == 0:
    User.objects.count()
    heap = open("/proc/self/smaps").read().partition("[heap]")[2]
    print(re.search(r"Private_Dirty: +([0-9]+)", heap)[1])
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""


def ran(code: str, data: Path) -> str:
    settings = {"DJANGO_SETTINGS_MODULE": "gpucoord_site.settings", "GPUCOORD_DATA": str(data)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | settings, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


def test_a_child_that_opens_the_database_copies_little_of_the_shared_heap(tmp_path: Path) -> None:
    ran("from gpucoord_site.cli.main import main; import sys; sys.argv[1:] = ['migrate']; main()",
        tmp_path)  # fmt: skip

    assert int(ran(FORKED, tmp_path)) < 2500  # kB; 4600 with the gaps


def test_the_web_process_begins_without_what_only_later_requests_need(tmp_path: Path) -> None:
    modules = set(ran(LOADED, tmp_path).split())

    assert "gpucoord_site.urls" in modules
    assert modules & LATER == set()
