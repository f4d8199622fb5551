"""Facts: the limits of this process on its machine, and their origin. Unknown is None."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LimitSource:
    """An upper limit and where it comes from, in words."""

    value: float
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The lowest limits of machine, container and configuration, with their origin.

    `memory_used_bytes`: the memory that counts against the container's limit. `visible_gpus`: the
    GPUs that NVIDIA_VISIBLE_DEVICES names, None = all. Requests are the resources that a pod is
    guaranteed.
    """

    cpus: float | None = None
    cpus_origin: str | None = None
    memory_bytes: int | None = None
    memory_origin: str | None = None
    memory_used_bytes: int | None = None
    machine_cpus: int | None = None
    machine_memory_bytes: int | None = None
    cpus_requested: float | None = None
    memory_requested_bytes: int | None = None
    visible_gpus: tuple[str, ...] | None = None
