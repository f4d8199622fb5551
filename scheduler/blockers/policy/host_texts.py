"""Policy: sentences about blockers of the host: its memory, CPUs and file systems."""

from __future__ import annotations

from scheduler.facts.blockers import Blocker
from scheduler.facts.units import size


def cpus(number: float) -> str:
    return f"{number:g} CPU{'' if number == 1 else 's'}"


def host_memory(blocker: Blocker) -> str:
    wants, free, whole = (size(blocker.detail(name)) for name in ("wants", "free", "whole"))
    if blocker.never:
        return f"It asks for {wants} of host memory; jobs may reserve {whole} here."
    return f"It asks for {wants} of host memory; {free} of {whole} are not reserved by jobs."


def host_cpus(blocker: Blocker) -> str:
    wants, free, whole = (blocker.detail(name) for name in ("wants", "free", "whole"))
    if blocker.never:
        return f"It asks for {cpus(wants)}; jobs may reserve {whole:g} here."
    return f"It asks for {cpus(wants)}; {free:g} of {whole:g} are not reserved by jobs."


def disk_full(blocker: Blocker) -> str:
    return (
        f"The file system of {blocker.detail('path')} is {blocker.detail('used_pct'):.0f} % full;"
        f" no job with its {blocker.requested} there starts above {blocker.detail('limit_pct'):g} %"
        f" ({size(blocker.detail('available_bytes'))} are left)."
    )
