"""Facts: how much of its GPUs an attempt used, and what that says about the next one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMinute:
    """Use of one GPU by all processes of an attempt in the minute that begins at `t`.

    held_s: the longest time that one of them was on the GPU. known_s: the part of it with measured
    use. memory_bytes: the sum of the processes' peaks; None = not measured for each of them.
    """

    gpu_uuid: str
    t: int
    sm_s: float
    held_s: float
    known_s: float
    memory_bytes: int | None
    joules: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """GPU use of an attempt. None = not known.

    gpu_s: seconds for which it had its GPUs, times their number. sm_s: GPU-seconds used.
    peak_memory_bytes: on the GPU where it took most. mean_pct, p95_pct: utilisation of a GPU, over
    the whole time and by minutes. coverage_pct: the measured part of the time that its processes
    were on the GPUs.
    """

    gpu_s: float
    sm_s: float | None = None
    coverage_pct: float | None = None
    mean_pct: float | None = None
    p95_pct: float | None = None
    peak_memory_bytes: int | None = None
    joules: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySuggestion:
    """GPU memory for a job, learned from earlier runs. peak_bytes: the highest of these runs."""

    memory_bytes: int
    peak_bytes: int
    runs: int


def fingerprint(owner_id: int, argv: Sequence[str]) -> str:
    """A text of 40 characters for the owner and the command without its numbers."""
    words = (_NUMBER.sub("#", word) for word in argv)
    text = "\0".join((str(owner_id), *words))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:40]
