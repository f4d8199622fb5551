"""Policy: which template of background work an idle GPU runs next, and why.

The weight of a template is its own weight times four factors, each 1 if nothing was posted:

curriculum weight      the posted value
improvement velocity   1 to 2: the fastest of the candidates gets 2
data age               1 to 2: grows with the age, and reaches 2 after `STALE_H`
quality                0.5 to 1.5, for a quality of 0 to 1

The first, second and fourth factor decay to 1: their distance from it halves in `HALF_LIFE_H`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from msgspec import Struct

from monitor.facts.gpus import GpuState
from monitor.facts.readings import GpuReading, Health
from monitor.facts.thresholds import threshold
from scheduler.facts.scripts import Candidate, Choice, Signal, SignalName, TemplateFact

# Hours in which posted values lose half of their effect, and after which old data has its full
# boost.
HALF_LIFE_H, STALE_H = 24.0, 168.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWorkPolicy:
    """Background work from templates on idle GPUs."""

    # fmt: off
    enabled: bool = threshold(True, "Run background work on idle GPUs",
        "Templates are in the admin. Without templates, nothing is started.")
    most_jobs: int = threshold(8, "Background jobs at a time", ge=0, le=10_000,
        help="On all hosts together, from all templates.")
    # fmt: on


_N = SignalName


def may_run(template: TemplateFact, gpu_uuid: str) -> bool:
    """Whether its limits allow another job on this GPU; "" = without a GPU."""
    is_over_day = (
        template.most_per_day is not None and template.started_today >= template.most_per_day
    )
    is_full = template.running >= template.most_running
    needs_gpu = template.gpus > 0
    has_place = not gpu_uuid or template.on_gpu.get(gpu_uuid, 0) < template.most_per_gpu
    return not is_over_day and not is_full and needs_gpu == bool(gpu_uuid) and has_place


def candidates(templates: Iterable[TemplateFact], now: datetime) -> tuple[Candidate, ...]:
    """Each template with its factors and its chance, by name."""
    ordered = sorted(templates, key=lambda template: template.name)
    fastest = max((_velocity(template) for template in ordered), default=0.0)
    weighted = [_candidate(template, fastest, now) for template in ordered]
    total = sum(candidate.weight for candidate in weighted)
    return tuple(
        replace(candidate, share=candidate.weight / total if total else 0.0)
        for candidate in weighted
    )


def pick_weighted_config(
    templates: Sequence[TemplateFact], now: datetime, seed: int
) -> Choice | None:
    """A weighted random choice; None: there is none, or all weights are 0."""
    weighted = candidates(templates, now)
    by_name = {template.name: template for template in templates}
    if not any(candidate.weight > 0 for candidate in weighted):
        return None
    place = _random_part(seed)
    for candidate in weighted:
        place -= candidate.share
        if candidate.weight > 0 and place < 0:
            break
    else:
        # The shares did not quite add up to 1.
        candidate = next(candidate for candidate in reversed(weighted) if candidate.weight > 0)
    return Choice(by_name[candidate.name], weighted, seed)


def _random_part(seed: int) -> float:
    """A number from 0 to 1, evenly distributed over seeds."""
    digest = hashlib.sha256(str(seed).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def _candidate(template: TemplateFact, fastest: float, now: datetime) -> Candidate:
    signals = template.signals
    quality = signals.get(_N.QUALITY)
    factors = {
        _N.CURRICULUM_WEIGHT: _decayed(signals.get(_N.CURRICULUM_WEIGHT), None, now),
        _N.IMPROVEMENT_VELOCITY: _decayed(
            signals.get(_N.IMPROVEMENT_VELOCITY),
            1 + _velocity(template) / fastest if fastest else 1.0,
            now,
        ),
        _N.DATA_AGE_HOURS: _age_factor(signals.get(_N.DATA_AGE_HOURS), now),
        _N.QUALITY: _decayed(quality, 0.5 + quality.value if quality else 1.0, now),
    }
    weight = template.weight
    for factor in factors.values():
        weight *= factor
    return Candidate(template.name, template.weight, factors, max(0.0, weight))


def _velocity(template: TemplateFact) -> float:
    signal = template.signals.get(_N.IMPROVEMENT_VELOCITY)
    return max(0.0, signal.value) if signal else 0.0


def _decayed(signal: Signal | None, raw: float | None, now: datetime) -> float:
    """The factor as it was posted (raw; None = the value itself), nearer to 1 the older it is."""
    if signal is None:
        return 1.0
    posted = signal.value if raw is None else raw
    hours = max(0.0, (now - signal.at).total_seconds() / 3600)
    return 1 + (posted - 1) * math.exp2(-hours / HALF_LIFE_H)


def _age_factor(signal: Signal | None, now: datetime) -> float:
    """The data has become older since its age was posted."""
    if signal is None:
        return 1.0
    age = signal.value + max(0.0, (now - signal.at).total_seconds() / 3600)
    return 1 + min(1.0, max(0.0, age) / STALE_H)


# GPUs that are idle by use, and idle GPUs that jobs wait for.


# An idle GPU that jobs wait for is reported if it was idle, and they waited, for this time.
WANTED_FOR = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """Reports of idle GPUs and CPUs, and of GPUs that are idle while jobs wait."""

    # fmt: off
    idle_seconds: float = threshold(300, "Idle after", unit="s", ge=10, le=86_400,
        help="A GPU or the CPUs of a host count as idle after this time below 5 % utilisation.")
    # fmt: on


class WaitingJob(Struct, frozen=True, kw_only=True):
    """A job with GPUs that waits. `gpu_uuid`: the one that it must have, empty = any."""

    job_id: int
    since: datetime
    why: str = ""
    gpu_uuid: str = ""


class IdleGpu(Struct, frozen=True):
    """An idle GPU and the jobs that could have used it, the longest waiting first."""

    gpu: GpuReading
    since: datetime
    waiting: tuple[WaitingJob, ...]


def idle_by_use(
    gpus: Iterable[GpuReading], policy: IdlePolicy, now: datetime
) -> list[tuple[GpuReading, datetime]]:
    """GPUs that have been below 5 % for long enough, and since when; memory may be held there."""
    patience = timedelta(seconds=policy.idle_seconds)
    return [
        (gpu, gpu.idle_since)
        for gpu in gpus
        if gpu.health is Health.OK and gpu.idle_since and now - gpu.idle_since >= patience
    ]


def long_idle(gpus: Iterable[GpuReading], now: datetime) -> list[tuple[GpuReading, datetime]]:
    """The GPUs that were idle for long enough, and since when."""
    return [
        (gpu, gpu.state_since)
        for gpu in gpus
        if gpu.state is GpuState.IDLE and gpu.state_since and now - gpu.state_since >= WANTED_FOR
    ]


def beside(
    idle: Iterable[tuple[GpuReading, datetime]],
    waiting: Sequence[WaitingJob],
    now: datetime,
) -> list[IdleGpu]:
    """The idle GPUs that jobs waited for all the time."""
    long = sorted((w for w in waiting if now - w.since >= WANTED_FOR), key=lambda w: w.since)
    return [
        IdleGpu(gpu, since, those)
        for gpu, since in idle
        if (those := tuple(w for w in long if w.gpu_uuid in ("", gpu.uuid)))
    ]
