"""Calls of the driver that did not come back: pauses, and GPUs that are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from monitor.facts.readings import GpuSweep

# A first hang of the driver as a whole may be transient; repeated hangs most likely are not.
FIRST_PAUSE, NEXT_PAUSE = timedelta(seconds=5), timedelta(seconds=60)
REMEMBERED = timedelta(minutes=15)
PROBLEM = "The NVIDIA driver hangs: a call did not come back."
REMEDY = (
    "gpucoord asks it again after 5 s, then each minute. Look for NVRM lines in `dmesg`; often only"
    " a restart of the machine helps."
)
# A GPU that hangs again and again is tried ever less often.
FIRST_ABSENCE, LONGEST_ABSENCE = timedelta(minutes=1), timedelta(hours=1)
HANGS_KEPT, MOST_HANGS = timedelta(hours=6), 200


@dataclass(frozen=True, slots=True)
class Hang:
    """A call that did not come back. gpu: what it was about, "" = the driver as a whole."""

    at: datetime
    gpu: str
    call: str


def hang_text(call: str, gpu: str, loop: str, waited_s: float) -> str:
    about = f" of {gpu}" if gpu else ""
    return (
        f"The NVIDIA driver hangs: {call}{about} did not come back within {waited_s:.0f} s."
        f" The {loop} goes on in a fresh process."
    )


def hung_call(text: str) -> str:
    """The call that `hang_text` names."""
    return text.partition(": ")[2].partition(" ")[0] or "a call"


def resumes_at(hangs: Sequence[datetime]) -> datetime | None:
    """When GPUs may be read again; `hangs` are newest first. None: at any time."""
    if not hangs:
        return None
    again = len(hangs) > 1 and hangs[0] - hangs[1] < REMEMBERED
    return hangs[0] + (NEXT_PAUSE if again else FIRST_PAUSE)


def paused() -> GpuSweep:
    """The sweep to show during a pause."""
    return GpuSweep(problem=PROBLEM, remedy=REMEDY)


def left_out(hangs: Sequence[Hang], answered: Mapping[str, datetime]) -> dict[str, str]:
    """The GPUs that are not called, with the call that hung; `hangs` are newest first.

    answered: when a trial last showed that the calls of a GPU come back.
    """
    return {gpu: same[0].call for gpu, same in _open(hangs, answered).items()}


def to_try(hangs: Sequence[Hang], answered: Mapping[str, datetime], now: datetime) -> str | None:
    """A GPU that is left out and is due for a trial.

    That is after the n-th hang of a GPU 2^(n-1) times FIRST_ABSENCE later.
    """
    of_gpus = _open(hangs, answered).items()
    due = {gpu: same[0].at for gpu, same in of_gpus if now - same[0].at >= _absence(len(same))}
    return min(due, key=due.__getitem__, default=None)


def _open(hangs: Sequence[Hang], answered: Mapping[str, datetime]) -> dict[str, list[Hang]]:
    by_gpu: dict[str, list[Hang]] = {}
    for hang in hangs:
        if hang.gpu:
            by_gpu.setdefault(hang.gpu, []).append(hang)
    return {
        gpu: same
        for gpu, same in by_gpu.items()
        if gpu not in answered or answered[gpu] < same[0].at
    }


def _absence(hangs: int) -> timedelta:
    # Bounded before the power, since a timedelta cannot hold 2^200 minutes.
    times: int = 2 ** min(hangs - 1, 10)
    return min(LONGEST_ABSENCE, FIRST_ABSENCE * times)
