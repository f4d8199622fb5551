"""Facts: a host that runs gpucoord on this database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class HostState(StrEnum):
    """Set by operators. drained: no new jobs start; disabled: its service does not start either."""

    ACTIVE = "active"
    DRAINED = "drained"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFact:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningHost:
    """The statement of a host about itself when it starts."""

    name: str
    instance: str
    boot_id: str
    version: str
    address: str
    profile: str
    log_address: str = ""
    key_mark: str = ""
