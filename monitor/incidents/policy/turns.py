"""How busy users keep one GPU at a time, by whatever GPUs they use in turn.

In each short step, the GPUs of a user are ranked by their use. The series of rank 0 is the use of
the busiest GPU of each step, if it has most of the user's use: about 100 % for a user who moves
between GPUs, and for one who stays, but not for use of several GPUs at the same time.
Rank `n` is the same without the `n` busiest GPUs. If any `n` GPUs are left out, one of the rest is
at least as busy as rank `n`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from monitor.incidents.policy.usage_series import Series, UsagePoint

# Length of the steps in which past minutes are divided: shorter than a stay on one GPU.
STEP_S = 5
MINUTE_S = 60
# Minimum part of a step's use on one GPU: less is use of several at the same time.
ONE_AT_A_TIME = 0.6
# Users who keep more GPUs than this busy are reported for each of them.
MOST_RANKS = 4
# A GPU with more use by others than this part tells nothing about the steps of one user.
ALONE = 0.05
# A minute with less use than this does not count as use of the GPU.
LEAST_S = 1.0

# Series by user and GPU.
SeriesOf = Mapping[str, Mapping[str, Sequence[Series]]]
# {GPU: {number of the step since the epoch: utilisation}}
Steps = Mapping[str, Mapping[int, float]]


@dataclass(slots=True)
class GpuMinute:
    """Use of a GPU from `t`, the begin of a minute, to `until`: seconds used, held and known.

    user: None for jobs and unknown users. Held and known are sums of all processes.
    """

    t: int
    gpu_uuid: str
    user: str | None
    until: float = 0.0
    sm_s: float = 0.0
    held_s: float = 0.0
    known_s: float = 0.0


@dataclass(slots=True)
class Turns:
    """By user of several GPUs: the series of each rank."""

    ranks: dict[str, list[Series]] = field(default_factory=dict)

    def note(self, until: float, passed: float, series_of: SeriesOf) -> None:
        """Add the time up to `until`; the first step of a user has at most `passed` seconds."""
        for user in [user for user in self.ranks if len(series_of.get(user, ())) < 2]:
            del self.ranks[user]
        for user, by_gpu in series_of.items():
            if len(by_gpu) < 2:
                continue
            ranks = self.ranks.get(user)
            if ranks is None:
                ranks = self.ranks[user] = _before(by_gpu)
            end = min(until, max(parts[0].end for parts in by_gpu.values()))
            since = ranks[0].end if ranks else end - passed
            if end <= since:
                continue
            used_s: list[float] = []
            known_s = span_s = 0.0
            for parts in by_gpu.values():
                sm_s = 0.0
                for part in parts:
                    if part.begin < end:
                        used = part.over(since, end)
                        sm_s += used.sm_s
                        known_s += used.known_s
                        span_s += used.span_s
                used_s.append(sm_s)
            _add(ranks, end, end - since, used_s, known_s / span_s if span_s else 0.0)

    def recall(self, minutes: Iterable[GpuMinute], steps: Steps) -> None:
        """Build up past minutes. `steps`: utilisation of the GPUs of `several_gpus`."""
        totals: dict[tuple[int, str], float] = {}
        by_user: dict[tuple[int, str], list[GpuMinute]] = {}
        for minute in minutes:
            place = (minute.t, minute.gpu_uuid)
            totals[place] = totals.get(place, 0.0) + minute.sm_s
            if minute.user is not None:
                by_user.setdefault((minute.t, minute.user), []).append(minute)
        gpus: dict[str, set[str]] = {}
        for (_, user), mine in by_user.items():
            gpus.setdefault(user, set()).update(minute.gpu_uuid for minute in mine)
        for (t, user), mine in sorted(by_user.items(), key=lambda item: item[0]):
            if len(gpus[user]) < 2:
                continue
            until = max(minute.until for minute in mine)
            held_s = sum(minute.held_s for minute in mine)
            known = sum(minute.known_s for minute in mine) / max(held_s, until - t)
            ranks = self.ranks.setdefault(user, [])
            if not any(minute.gpu_uuid in steps for minute in mine):
                _add(ranks, until, until - t, [minute.sm_s for minute in mine], known)
                continue
            ends = [min(until, float(end)) for end in range(t + STEP_S, t + MINUTE_S + 1, STEP_S)]
            lengths = [max(0.0, end - t - n * STEP_S) for n, end in enumerate(ends)]
            divided = [_divided(m, totals[t, m.gpu_uuid], lengths, steps) for m in mine]
            for end, length, used in zip(ends, lengths, zip(*divided, strict=True), strict=True):
                _add(ranks, end, length, used, known)


def several_gpus(minutes: Iterable[GpuMinute], busy_pct: float) -> set[str]:
    """The GPUs that users may have kept so busy in turn in a minute, but none of them alone."""
    least_s = busy_pct / 100 * MINUTE_S
    used: dict[tuple[int, str], dict[str, float]] = {}
    for minute in minutes:
        if minute.user is not None and LEAST_S <= minute.sm_s < least_s:
            used.setdefault((minute.t, minute.user), {})[minute.gpu_uuid] = minute.sm_s
    return {gpu for of_user in used.values() if sum(of_user.values()) >= least_s for gpu in of_user}


def _before(by_gpu: Mapping[str, Sequence[Series]]) -> list[Series]:
    """The ranks of a user until the use of a second GPU."""
    parts = sorted(
        (part for parts in by_gpu.values() for part in parts if part.points),
        key=lambda part: part.begin,
    )
    if len(parts) < 2:
        return []
    points = [point for point in parts[0].points if point[0] <= parts[1].begin]
    return [Series([(p[0], p[1], p[2], p[3], 0.0, 0.0) for p in points])]


def _divided(
    minute: GpuMinute, total_s: float, lengths: Sequence[float], steps: Steps
) -> list[float]:
    """The use in each step of the minute, in proportion to the GPU's utilisation.

    Evenly, if that is unknown or others used the GPU too.
    """
    sm_s, first = minute.sm_s, minute.t // STEP_S
    by_step = steps.get(minute.gpu_uuid, {})
    parts = [by_step.get(first + n, 0.0) if length else 0.0 for n, length in enumerate(lengths)]
    if total_s - sm_s > ALONE * sm_s or not sum(parts):
        parts = list(lengths)
    whole = sum(parts)
    return [sm_s * part / whole if whole else 0.0 for part in parts]


def _add(
    ranks: list[Series], until: float, passed: float, used_s: Sequence[float], known: float
) -> None:
    """Add a step to the series of each rank; a new rank was unused before."""
    known_s = passed * min(1.0, known)
    ordered = sorted(used_s, reverse=True)
    while len(ranks) < min(MOST_RANKS, len(ordered)):
        ranks.append(_unused_like(ranks))
    for rank, series in enumerate(ranks):
        sm_s = min(passed, ordered[rank]) if rank < len(ordered) else 0.0
        if sm_s < ONE_AT_A_TIME * sum(ordered[rank:]):
            sm_s = 0.0
        series.add(until, passed, UsagePoint(passed, sm_s, passed, known_s, 0.0, 0.0))


def _unused_like(ranks: Sequence[Series]) -> Series:
    if not ranks:
        return Series()
    return Series([(p[0], 0.0, p[2], p[3], 0.0, 0.0) for p in ranks[0].points])
