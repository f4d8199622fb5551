"""gpucoord's own settings with a simulated server whose GPUs no program uses."""

from __future__ import annotations

from gpucoord_site.settings import *  # noqa: F403
from monitor.gpus.sampling.probes import simulated as workloads

workloads._PATTERN = ()
