"""A start loads only what the first live frame needs."""

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
print(*sys.modules, sep="\\n")
"""


def test_the_web_process_begins_without_what_only_later_requests_need(tmp_path: Path) -> None:
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings",
        "GPUCOORD_DATA": str(tmp_path),
    }
    told = subprocess.run(
        [sys.executable, "-c", LOADED], env=env, check=True, capture_output=True, text=True
    )
    modules = set(told.stdout.split())

    assert "gpucoord_site.urls" in modules
    assert modules & LATER == set()
