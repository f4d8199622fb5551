"""Settings for tests: a throw-away data folder and a fast password hasher."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

if "GPUCOORD_DATA" not in os.environ:
    os.environ["GPUCOORD_DATA"] = tempfile.mkdtemp(prefix="gpucoord-test-")
    _maker = os.getpid()

    def _remove() -> None:
        # A forked child leaves through atexit too; the folder is not its to remove.
        if os.getpid() == _maker:
            shutil.rmtree(os.environ["GPUCOORD_DATA"], ignore_errors=True)

    atexit.register(_remove)
os.environ.setdefault("GPUCOORD_PROBE", "simulated")
# Users of tests have no OS accounts.
os.environ.setdefault("GPUCOORD_RUN_AS", "nobody")

from gpucoord_site.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Each client of a test would look through all static files anew.
WHITENOISE_AUTOREFRESH = True
