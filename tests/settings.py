"""Settings for tests: a throw-away data folder and a fast password hasher."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("GPUCOORD_DATA", tempfile.mkdtemp(prefix="gpucoord-test-"))
os.environ.setdefault("GPUCOORD_PROBE", "simulated")

from gpucoord_site.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
