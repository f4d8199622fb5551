"""gpucoord's own settings with a simulated server that has one program of a user outside the queue.

It is on GPU 0 from the time of change of the file that the variable VISITOR_FILE names.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpucoord_site.settings import *  # noqa: F403
from monitor.gpus.sampling.probes import simulated as workloads
from monitor.gpus.sampling.probes.simulated import Script, visitor


class Visitor(Script):
    def run_at(self, t: float) -> tuple[int, float] | None:
        try:
            began = Path(os.environ["VISITOR_FILE"]).stat().st_mtime
        except OSError:
            return None
        return (1, began) if began <= t else None


workloads._PATTERN = (Visitor("frank", "python3", "python3 game.py", (0,), 4.0, visitor),)
