"""The three sentences at the begin of a report."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.facts.formats import sig3
from reports.figures.facts import Report, Totals, UserFigures
from reports.render.wording.tables import name
from scheduler.queue.blockers.policy.titles import title

MOST_WASTES = 3
# Below either, GPU-hours without use are not worth a line.
LEAST_WASTE_H, LEAST_WASTE_PART = 0.1, 0.01


def sentences(report: Report) -> tuple[str, ...]:
    """Whether it was fair, the waste, and the waits. Nothing where nothing was measured."""
    if report.is_empty:
        return ()
    return _fairness(report), _waste(report), _waits(report)


def _fairness(report: Report) -> str:
    if not report.violations:
        return "No fair share violation."
    worst = report.violations[0]
    row = next((each for each in report.users if each.user == worst.user), None)
    caused = row.caused_wait_hours if row else worst.waited_hours
    share = None if row is None else row.share_pct
    held = (
        "more of the GPU time than"
        if share is None
        else f"{sig3(share)} % of the GPU time, more than"
    )
    others = len({each.user for each in report.violations}) - 1
    more = f" So did {others} more user{'s' if others > 1 else ''}." if others else ""
    return (
        f"{name(worst.user)} held {held} the entitlement of {sig3(worst.expected_pct)} %,"
        f" and jobs of others waited {sig3(caused)} h for it.{more}"
    )


def _waste(report: Report) -> str:
    """Such as "44 of 156 GPU-hours held were not used; largest: erin 10.5 of 13.8."."""
    people = report.totals.people
    if not people.held:
        return "No GPU-hours held."
    unused = people.idle_held + people.booked_empty
    words = f"{sig3(unused)} of {sig3(people.held)} GPU-hours held were not used"
    least = max(LEAST_WASTE_H, LEAST_WASTE_PART * people.held)
    wastes = sorted((waste for row in report.users for waste in _of(row)), reverse=True)
    largest = [text for hours, text in wastes[:MOST_WASTES] if hours >= least]
    return f"{words}; largest: {', '.join(largest)}." if largest else f"{words}."


def _of(row: UserFigures) -> Iterator[tuple[float, str]]:
    """(GPU-hours without use, "erin 10.5 of 13.8"), with a process and without."""
    user, known = name(row.user), sig3(row.held - row.unknown)
    yield row.idle_held, f"{user} {sig3(row.idle_held)} of {known}"
    yield row.booked_empty, f"{user} {sig3(row.booked_empty)} of {known} (booked without a process)"


def _waits(report: Report) -> str:
    if not report.totals.waited_hours or not report.blockers:
        return waiting(report.totals)
    main = max(report.blockers, key=lambda row: row.waited_hours)
    return f"{waiting(report.totals)} Main blocker: {_lower(title(main.blocker))}."


def waiting(totals: Totals) -> str:
    if not totals.waited_hours:
        return "No job waited for a GPU."
    idle = totals.waited_idle_hours
    while_idle = (
        f", up to {sig3(idle)} h of them while held GPUs stood idle" if idle >= 0.05 else ""
    )
    return f"Jobs waited {sig3(totals.waited_hours)} h{while_idle}."


def _lower(words: str) -> str:
    """ "Too little" in a sentence; "GPU" stays as it is."""
    return words if words[:2].isupper() else words[:1].lower() + words[1:]
