"""Facts: states of a batch and of its items, the limits of a batch, and its exclusive mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

MOST_ITEMS = 100_000
LONGEST_ITEM = 4096
# Of one user: batches that have not ended, and items of all batches of the last 24 hours.
MOST_OPEN_BATCHES = 50
MOST_ITEMS_A_DAY = 1_000_000
# In JSON. The job of the item has a larger result.
LARGEST_ITEM_RESULT = 8 * 1024


class BatchState(StrEnum):
    """complete: every item succeeded. failed: all items have ended, and some have failed."""

    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ItemState(StrEnum):
    """queued: no job yet. assigned: its job waits for a GPU, or starts; or workers have it at
    hand.
    """

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Input of a pass for one batch. waiting, running: its open items, by their jobs.

    has_changed: the job of an item has moved on. has_queued: items have no job yet.
    """

    waiting: int = 0
    running: int = 0
    has_changed: bool = False
    has_queued: bool = False


class WorkerState(StrEnum):
    """queued: its job waits for a GPU. booting: it loads. ready: it has taken an item."""

    QUEUED = "queued"
    BOOTING = "booting"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a worker to one try of an item.

    job, attempt: of the worker that has taken it; 0 = unknown. began, ended: in seconds since 1970;
    ended None: it has not answered. returned: it had to leave before it could answer.
    """

    job: int = 0
    attempt: int = 0
    began: float = 0.0
    ended: float | None = None
    output: Any = None
    error: str | None = None
    returned: bool = False

    @property
    def took_s(self) -> float:
        return 0.0 if self.ended is None else max(0.0, self.ended - self.began)


# An item of these states has a job that has not ended.
OPEN_ITEMS = (ItemState.ASSIGNED.value, ItemState.RUNNING.value)


class ExclusiveStep(StrEnum):
    """The steps of the exclusive mode, in their order.

    waiting: for GPUs, or for another batch · announced: users are notified, and no other job starts
    on its GPUs · draining: new prompts queue, running ones finish · unloading: models leave ·
    working: the GPUs run items only · reloading: models load again, one after another · ended.
    """

    WAITING = "waiting"
    ANNOUNCED = "announced"
    DRAINING = "draining"
    UNLOADING = "unloading"
    WORKING = "working"
    RELOADING = "reloading"
    ENDED = "ended"


class Approval(StrEnum):
    """Why a batch may be exclusive.

    none: by a quota, or its owner is an operator · share: on as many GPUs as the fair share of its
    owner is worth · asked: not before an operator approves it · approved.
    """

    NONE = "none"
    SHARE = "share"
    ASKED = "asked"
    APPROVED = "approved"


# In these steps only items of the batch, and models that are loaded again, start on its GPUs.
RESERVING = (
    ExclusiveStep.ANNOUNCED,
    ExclusiveStep.DRAINING,
    ExclusiveStep.UNLOADING,
    ExclusiveStep.WORKING,
    ExclusiveStep.RELOADING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveFact:
    """The exclusive mode of a batch, as input of the policy.

    is_over: the batch has no items left, or was cancelled. is_stopped: an operator ended the mode.
    is_next: no other batch has GPUs of the host or waits for longer. gpus: how many it can take,
    later how many it has. in_flight: requests of the models on them. loaded: instances on them that
    have not ended. reloads: models to load again. boots: the one that is being loaded has neither
    become ready nor failed.
    """

    step: ExclusiveStep
    since: datetime
    is_over: bool = False
    is_stopped: bool = False
    is_next: bool = True
    gpus: int = 0
    in_flight: int = 0
    loaded: int = 0
    reloads: int = 0
    boots: bool = False


# Templates of background work for idle GPUs, and the signals that weight them.


class SignalName(StrEnum):
    """curriculum_weight: how much training wants it now, 1 = neutral · improvement_velocity: how

    fast it improves, in any unit · data_age_hours: since its data were made · quality: of its
    results, 0 to 1.
    """

    CURRICULUM_WEIGHT = "curriculum_weight"
    IMPROVEMENT_VELOCITY = "improvement_velocity"
    DATA_AGE_HOURS = "data_age_hours"
    QUALITY = "quality"


@dataclass(frozen=True, slots=True)
class Signal:
    """A posted value, and when it was posted."""

    value: float
    at: datetime


NO_SIGNALS: Mapping[SignalName, Signal] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFact:
    """A template as input of the policy. gpus: of each job; 0 = it needs no GPU.

    running: its open jobs. started_today: since midnight in the zone of the server. on_gpu: its
    open jobs by GPU. None of the limits = no limit.
    """

    id: int
    name: str
    weight: float = 1.0
    gpus: int = 1
    signals: Mapping[SignalName, Signal] = field(default_factory=lambda: NO_SIGNALS)
    most_running: int = 1
    most_per_gpu: int = 1
    most_per_day: int | None = None
    running: int = 0
    started_today: int = 0
    on_gpu: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A template with its factors, 1 = neutral, and its weight; share: its chance, 0 to 1."""

    name: str
    base: float
    factors: Mapping[SignalName, float]
    weight: float
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of `pick_weighted_config`: the same seed and facts give the same choice."""

    template: TemplateFact
    candidates: tuple[Candidate, ...]
    seed: int
