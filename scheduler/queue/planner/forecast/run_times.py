"""Policy: the expected run time of a job, from its limit or estimate and from earlier jobs.

A time limit is only an upper bound; users choose it 2 to 10 times too long. The first known value
counts: the run times of the owner's jobs of the same name; the estimate, scaled by the ratio of
earlier jobs to their estimates; the limit, scaled by the used part of earlier limits; the run times
of the owner's other jobs. Each is shrunk towards the values of all users and a prior, on a
logarithmic scale, with the weight of PRIOR_JOBS jobs, so few observations change it little.

Many runs of one program say how long that program runs, and nothing about the spread of others. So
for a job of a new name, the spread counts with the number of known names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import exp, log, sqrt
from statistics import median

from scheduler.facts.jobs import Ends, QueuedJob, RunTime
from scheduler.facts.language_models import OWNER
from scheduler.facts.plans import RunningJob

# How many jobs the less specific knowledge counts as.
PRIOR_JOBS = 4.0
# With fewer runs of its name, and fewer other names, the run time of a job is a guess.
FEW = 3
# From the median to the 90th percentile of a normal distribution.
Z90 = 1.2816
SHORTEST_S = 1.0
# In a simulation.
SHORTEST = timedelta(seconds=2)
# The part that the n-th job of a GPU adds to the spread of their sum.
PARTS = tuple(sqrt(n + 1) - sqrt(n) for n in range(64))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that ran to its own end or to its limit."""

    owner: str
    name: str
    took: timedelta
    limit: timedelta | None = None
    estimate: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and standard deviation of logarithms, and how many jobs they are of.

    kinds: how many different programs these jobs are, where another program is predicted.
    """

    middle: float
    sigma: float
    count: float = PRIOR_JOBS
    kinds: float = PRIOR_JOBS

    def towards(self, wider: Spread) -> Spread:
        """This knowledge, shrunk towards wider knowledge."""
        part = self.count / (self.count + PRIOR_JOBS)
        of_sigma = self.kinds / (self.kinds + PRIOR_JOBS)
        return Spread(
            part * self.middle + (1 - part) * wider.middle,
            of_sigma * self.sigma + (1 - of_sigma) * wider.sigma,
            self.count,
            self.kinds,
        )


# Nothing is known: 10 minutes, in nine of ten cases below 3 hours.
ANY = Spread(log(600), 2.2, kinds=0)
# Of a time limit jobs use about 40 %; of an estimate all.
OF_LIMIT = Spread(log(0.4), 0.7)
OF_ESTIMATE = Spread(0.0, 0.3)


@dataclass(frozen=True, slots=True)
class History:
    """Statistics of ended jobs, by owner ("" = all users). alike: by owner and job name."""

    alike: Mapping[tuple[str, str], Spread] = field(default_factory=dict)
    took: Mapping[str, Spread] = field(default_factory=dict)
    of_limit: Mapping[str, Spread] = field(default_factory=dict)
    of_estimate: Mapping[str, Spread] = field(default_factory=dict)


def history(ended: Iterable[EndedJob]) -> History:
    """Summarise ended jobs."""
    alike: dict[tuple[str, str], list[float]] = defaultdict(list)
    took: dict[str, list[float]] = defaultdict(list)
    programs: dict[str, set[tuple[str, str]]] = defaultdict(set)
    of_limit: dict[str, list[float]] = defaultdict(list)
    of_estimate: dict[str, list[float]] = defaultdict(list)
    for job in ended:
        value = log(max(SHORTEST_S, job.took.total_seconds()))
        alike[job.owner, job.name].append(value)
        for owner in (job.owner, ""):
            took[owner].append(value)
            programs[owner].add((job.owner, job.name))
            if job.limit:
                of_limit[owner].append(min(0.0, value - log(job.limit.total_seconds())))
            if job.estimate:
                of_estimate[owner].append(value - log(job.estimate.total_seconds()))
    return History(
        alike={key: _spread(values) for key, values in alike.items()},
        took=_shrunk(took, ANY, {owner: len(names) for owner, names in programs.items()}),
        of_limit=_shrunk(of_limit, OF_LIMIT),
        of_estimate=_shrunk(of_estimate, OF_ESTIMATE),
    )


def expected(
    owner: str,
    name: str,
    limit: timedelta | None,
    estimate: timedelta | None,
    learned: History,
) -> RunTime:
    """The run time that half of such jobs, and nine of ten, don't exceed; at most the limit."""
    if estimate:
        spread = _times(estimate, _of(learned.of_estimate, owner, OF_ESTIMATE))
    elif limit:
        spread = _times(limit, _of(learned.of_limit, owner, OF_LIMIT))
    else:
        spread = _of(learned.took, owner, ANY)
    alike = learned.alike.get((owner, name))
    if alike is not None:
        spread = alike.towards(spread)
    p50, p90 = exp(spread.middle), exp(spread.middle + Z90 * spread.sigma)
    most = limit.total_seconds() if limit else p90
    is_guess = not (limit or estimate) and spread.kinds < FEW
    return RunTime(timedelta(seconds=min(p50, most)), timedelta(seconds=min(p90, most)), is_guess)


def expected_end(started_at: datetime, run_time: RunTime | None, now: datetime) -> Ends | None:
    """When a running job ends, for every page, plan and forecast. None = no run time is known.

    run_time: by progress, history, estimate or limit (`execution.progress.policy.run_time`).
    """
    if run_time is None:
        return None
    elapsed = max(timedelta(), now - started_at)
    p50 = remaining(elapsed, run_time, late=False)
    p90 = remaining(elapsed, run_time, late=True)
    return Ends(now + p50, now + max(p50, p90))


def remaining(started_for: timedelta, run_time: RunTime, *, late: bool) -> timedelta:
    """Remaining time of a running job: p90 if `late`, else p50.

    After the median, half of the remaining jobs end in the first half of the time up to the 90th
    percentile. After that, the remaining time is a part of the elapsed time.
    """
    typical, longest = run_time.p50, run_time.p90
    if late:
        return longest - started_for if started_for < longest else started_for / 2
    if started_for < typical * 0.9:
        return typical - started_for
    if started_for < longest:
        return max((longest - started_for) / 3, typical - started_for)
    return started_for / 10


def end_of(job: RunningJob, now: datetime, *, late: bool) -> datetime | None:
    """When a running job ends in a simulation; None = unknown, or it is a model, which stays."""
    if job.owner == OWNER:
        return None
    if job.yields:
        return now + SHORTEST
    ends = job.ends
    if ends is None or ends.p50 <= now:
        usual = job.expected
        if usual is None and (typical := job.typical or job.lasts) is not None:
            usual = RunTime(typical, max(typical, job.lasts or typical))
        ends = expected_end(job.started_at, usual, now)
    if ends is None:
        return None
    return max(now + SHORTEST, ends.p90 if late else ends.p50)


def lasts(job: QueuedJob, before: int, *, late: bool) -> timedelta | None:
    """How long a job takes in a simulation that starts on a GPU after `before` others.

    Long run times seldom come together: the spread of a sum of n grows with the root of n. So the
    n-th job on a GPU adds only its part of that, unless its run time is a guess.
    """
    if job.owner == OWNER:
        return None
    expected = job.expected
    if expected is not None:
        typical, longest = expected.p50, expected.p90
    else:
        length = job.typical or job.lasts
        if length is None:
            return None
        typical, longest = length, job.lasts or length
    if not late or longest <= typical:
        return typical
    if expected is not None and expected.is_guess:
        return longest
    return typical + (longest - typical) * PARTS[min(before, len(PARTS) - 1)]


def _times(said: timedelta, ratio: Spread) -> Spread:
    return Spread(log(max(SHORTEST_S, said.total_seconds())) + ratio.middle, ratio.sigma)


def _of(spreads: Mapping[str, Spread], owner: str, prior: Spread) -> Spread:
    return spreads.get(owner) or spreads.get("") or prior


def _spread(values: list[float], kinds: int | None = None) -> Spread:
    middle = median(values)
    sigma = median(abs(value - middle) for value in values) * 1.4826
    return Spread(middle, sigma, len(values), len(values) if kinds is None else kinds)


def _shrunk(
    values: Mapping[str, list[float]], prior: Spread, kinds: Mapping[str, int] | None = None
) -> dict[str, Spread]:
    """kinds: how many programs the jobs of each owner are; None = as many as jobs."""
    if "" not in values:
        return {}
    spreads = {
        owner: _spread(sample, None if kinds is None else kinds[owner])
        for owner, sample in values.items()
    }
    of_all = spreads[""].towards(prior)
    of_each = {owner: spread.towards(of_all) for owner, spread in spreads.items() if owner}
    return of_each | {"": of_all}
