"""Policy: what to do about the findings of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from monitor.facts.formats import sig3
from reports.figures.facts import (
    PatternFact,
    Recommendation,
    Report,
    Totals,
    UserFigures,
    Violation,
)
from reports.figures.policy.violations import above_entitlement

# Held hours, their idle part and waits below which no advice is worth reading.
LEAST_HOURS, IDLE_PART, LEAST_WAIT_HOURS = 1.0, 0.5, 4.0


def recommendations(
    violations: Sequence[Violation],
    users: Sequence[UserFigures],
    patterns: Sequence[PatternFact],
    totals: Totals,
) -> tuple[Recommendation, ...]:
    """The most urgent first. Users whose own time was measured badly are not to be contacted."""
    contacts = (
        *_of_violations(violations, users),
        *_of_patterns(violations, patterns),
        *_of_idle(users),
        *_of_bookings(users),
    )
    above = above_entitlement(users, violations)
    named = {advice.user for advice in contacts}
    return (
        *contacts,
        # A user who is to be contacted gets no second advice about the same use.
        *(_lower_share(user) for user in above if user.user not in named),
        *_raised_quotas(users, totals),
        *_of_sizes(users),
    )


def _of_violations(
    violations: Sequence[Violation], users: Sequence[UserFigures]
) -> Iterator[Recommendation]:
    caused = {u.user: u.caused_wait_hours for u in users}
    users_done: set[str | None] = set()
    for v in violations:
        if v.user in users_done:
            continue
        users_done.add(v.user)
        mine = [other for other in violations if other.user == v.user]
        hours = sum(other.hours for other in mine)
        gpus = list(dict.fromkeys(gpu for other in mine for gpu in other.gpus))
        level = min(other.above_pct for other in mine)
        usage = f"{_programs(mine)} used {_gpus(gpus)} above {level:g} % for {hours:.1f} h"
        text = (
            f"Contact {v.user}: {usage} outside the queue, which made jobs of others wait"
            f" {caused.get(v.user, v.waited_hours):.1f} h. Submit such work as preemptible jobs."
        )
        yield Recommendation(kind="contact", text=text, user=v.user)


def _of_patterns(
    violations: Sequence[Violation], patterns: Sequence[PatternFact]
) -> Iterator[Recommendation]:
    named = {v.user for v in violations}
    for pattern in patterns:
        if pattern.user and pattern.user in named:
            yield Recommendation(
                kind="window",
                text=f"Agree a time window with {pattern.user}: {pattern.text}",
                user=pattern.user,
            )


def _of_idle(users: Iterable[UserFigures]) -> Iterator[Recommendation]:
    for u in users:
        known_h = u.held - u.unknown
        if u.user and known_h >= LEAST_HOURS and u.idle_held > IDLE_PART * known_h and _good(u):
            yield Recommendation(
                kind="contact",
                text=f"Contact {u.user}: {sig3(u.idle_held)} of {sig3(known_h)} GPU-hours held were"
                " idle. Stop finished notebooks and processes, or batch the work as jobs.",
                user=u.user,
            )


def _of_bookings(users: Iterable[UserFigures]) -> Iterator[Recommendation]:
    for u in users:
        known_h = u.held - u.unknown
        if (
            u.user
            and u.booked_empty >= LEAST_HOURS
            and u.booked_empty > 0.25 * known_h
            and _good(u)
        ):
            yield Recommendation(
                kind="contact",
                text=f"Contact {u.user}: jobs booked {sig3(u.booked_empty)} GPU-hours without a"
                " process on the GPU. Split the CPU part into a job of its own.",
                user=u.user,
            )


def _lower_share(u: UserFigures) -> Recommendation:
    text = (
        f"Lower the share or the GPU limit of {u.user}: {u.share_pct:.0f} % of the GPUs held"
        f" against {u.entitled_pct:.3g} % entitled, and jobs of others waited"
        f" {sig3(u.caused_wait_hours)} h for it."
    )
    return Recommendation(kind="quota", text=text, user=u.user)


def _raised_quotas(users: Iterable[UserFigures], totals: Totals) -> Iterator[Recommendation]:
    """Of users who waited although GPUs were free, and used their entitlement."""
    if totals.gpu_hours.free <= 0.2 * totals.gpu_hours.capacity:
        return
    for u in users:
        if not u.user or u.entitled_pct is None or u.share_pct is None or not _good(u):
            continue
        if u.waited_hours >= LEAST_WAIT_HOURS and u.share_pct >= 0.9 * u.entitled_pct:
            text = (
                f"Raise the quota of {u.user}: jobs waited {sig3(u.waited_hours)} h at a share of"
                f" {u.share_pct:.0f} % while GPUs were free."
            )
            yield Recommendation(kind="quota", text=text, user=u.user)


def _of_sizes(users: Iterable[UserFigures]) -> Iterator[Recommendation]:
    for u in users:
        if u.user and u.right_size is not None:
            yield Recommendation(
                kind="right_size",
                text=f"Right-size the jobs of {u.user}: {u.right_size.text}.",
                user=u.user,
            )


def _good(user: UserFigures) -> bool:
    return user.coverage is not None and user.coverage >= 0.8


def _programs(violations: Sequence[Violation]) -> str:
    names = list(dict.fromkeys(v.program for v in violations))
    more = len(names) - 1
    return names[0] if not more else f"{names[0]} and {more} other program{'s' if more > 1 else ''}"


def _gpus(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} GPUs"


def headline(report: Report) -> str:
    """The line of the text form."""
    if report.violations:
        return "Contact owners or adjust quotas"
    return "See below" if report.recommendations else "None"
