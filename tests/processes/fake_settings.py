"""gpucoord's own settings with loops that only leave marks."""

from __future__ import annotations

from gpucoord_site.settings import *  # noqa: F403

LOOPS = "tests.processes.fake_steps:LOOPS"
