"""After a call of NVIDIA's driver hung: how long GPUs are left alone, and what people are told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from monitor.readings import GpuSweep

# The first hang may be a passing one; more within a while most likely are not.
FIRST_PAUSE, NEXT_PAUSE = timedelta(seconds=5), timedelta(seconds=60)
REMEMBERED = timedelta(minutes=15)
KEPT = 3
PROBLEM = "The NVIDIA driver hangs: a call did not come back."
REMEDY = (
    "gpucoord asks it again after 5 s, then each minute. Look for NVRM lines in `dmesg`; often only"
    " a restart of the machine helps."
)


def resumes_at(hangs: Sequence[datetime]) -> datetime | None:
    """When GPUs may be read again, given when calls hung, newest first; None = at any time."""
    if not hangs:
        return None
    again = len(hangs) > 1 and hangs[0] - hangs[1] < REMEMBERED
    return hangs[0] + (NEXT_PAUSE if again else FIRST_PAUSE)


def paused() -> GpuSweep:
    """What a sweep shows meanwhile."""
    return GpuSweep(problem=PROBLEM, remedy=REMEDY)
