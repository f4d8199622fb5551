"""Facts: a host that runs gpucoord, the limits of a process there, and space of file systems."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct


class HostState(StrEnum):
    """Set by operators. drained: no new jobs start; disabled: its service does not start either."""

    ACTIVE = "active"
    DRAINED = "drained"
    DISABLED = "disabled"


class HostFact(Struct, frozen=True, kw_only=True):
    """seen_at: its newest reading. down_at: an operator confirmed that it is down.

    address: of its pages. log_address: where other hosts read its logs. models_address: of its
    endpoint for language models, for other hosts. "" = it has none.

    instance: identity of its data folder; "" = it has not started since hosts have one.
    key_mark: a digest of its secret key; "" = not known.
    """

    name: str
    state: HostState = HostState.ACTIVE
    instance: str = ""
    key_mark: str = ""
    version: str = ""
    address: str = ""
    log_address: str = ""
    models_address: str = ""
    reason: str = ""
    changed_by: str = ""
    started_at: datetime | None = None
    seen_at: datetime | None = None
    down_at: datetime | None = None
    down_by: str = ""
    gpus: int = 0

    @property
    def takes_jobs(self) -> bool:
        """Whether new jobs may start there."""
        return self.state is HostState.ACTIVE


class JoiningHost(Struct, frozen=True, kw_only=True):
    """The statement of a host about itself when it starts."""

    name: str
    instance: str
    boot_id: str
    version: str
    address: str
    profile: str
    log_address: str = ""
    key_mark: str = ""


# The limits of this process on its machine, and their origin. Unknown is None.


class LimitSource(Struct, frozen=True):
    """An upper limit and where it comes from, in words."""

    value: float
    origin: str


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
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


# The space of a file system, as `df` counts it.


def used_pct(used_bytes: int | None, available_bytes: int | None) -> float | None:
    """Used part of the usable space in percent, as `df` counts it.

    The blocks that are reserved for root are neither used nor available. None: it is unknown, or
    the file system has no size, as /proc.
    """
    if used_bytes is None or available_bytes is None:
        return None
    usable = used_bytes + available_bytes
    return 100 * used_bytes / usable if usable else None


class FileSystemSpace(Struct, frozen=True, kw_only=True):
    """The space of a file system, without the blocks that are reserved for root."""

    used_bytes: int
    available_bytes: int

    @property
    def usable_bytes(self) -> int:
        return self.used_bytes + self.available_bytes

    @property
    def used_pct(self) -> float | None:
        return used_pct(self.used_bytes, self.available_bytes)
