"""Facts: templates of background work for idle GPUs, and the signals that weight them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType


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
