"""Hourly use of a GPU by users with a habit, and by users without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random

from monitor.incidents.policy.patterns import Place, UsagePattern, find

# A Monday.
NOW = datetime(2026, 3, 16, 11, 30, tzinfo=UTC)
END = int(NOW.timestamp()) // 3600 * 3600
BEGIN = END - 57 * 24 * 3600
WATCHED = tuple(range(BEGIN, END, 3600))
PLACE = Place("GPU-1", "python")
# {begin of an hour: {place: percent}}
Hourly = dict[int, dict[Place, float]]
Habit = Callable[[Random], Hourly]


def random_runs(on_h: float, off_h: float) -> Habit:
    """Use and pauses of random length, with these means, at any time."""

    def use(rng: Random) -> Hourly:
        used: dict[int, float] = {}
        is_on = rng.random() < on_h / (on_h + off_h)
        t = float(BEGIN)
        while t < END:
            until = min(t + 3600 * rng.expovariate(1 / (on_h if is_on else off_h)), float(END))
            while is_on and t < until:
                hour = int(t) // 3600 * 3600
                end = min(hour + 3600.0, until)
                used[hour] = used.get(hour, 0.0) + 97 * (end - t) / 3600
                t = end
            t, is_on = until, not is_on
        return {hour: {PLACE: pct} for hour, pct in used.items()}

    return use


def random_hours(part: float) -> Habit:
    """Each hour is busy with this probability."""
    return lambda rng: {t: {PLACE: 95.0} for t in WATCHED if rng.random() < part}


def habit(
    days: tuple[int, ...],
    start: int,
    length: int,
    *,
    sure: float = 1.0,
    low_pct: float = 90.0,
    beside: float = 0.0,
    gpus: int = 1,
    programs: int = 1,
    last_days: int = 57,
) -> Habit:
    """Use from `start` for `length` hours on these weekdays, with probability `sure` on each.

    low_pct: each hour has a use between it and 95 %. beside: probability of other busy hours. The
    use is on another one of `gpus` each day, and divided between `programs`.
    """

    def use(rng: Random) -> Hourly:
        used: Hourly = {}
        seed = rng.random()
        for t in WATCHED:
            local = datetime.fromtimestamp(t, UTC) - timedelta(hours=start)
            is_recent = t >= END - last_days * 86400
            inside = is_recent and local.weekday() in days and local.hour < length
            if inside and Random(f"{seed} {local.date()}").random() < sure:
                pct = rng.uniform(low_pct, 95.0)
                gpu = f"GPU-{local.toordinal() % gpus}"
                used[t] = {Place(gpu, f"p{n}"): pct / programs for n in range(programs)}
            elif rng.random() < beside:
                used[t] = {PLACE: 95.0}
        return used

    return use


def patterns_of(users: Mapping[str, Hourly]) -> list[UsagePattern]:
    return find(users, WATCHED, UTC, NOW)
