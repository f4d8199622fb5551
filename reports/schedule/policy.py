"""Policy: which period a schedule must report now, and the texts of messages with a report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from monitor.facts.thresholds import threshold
from reports.figures.facts import Period, Report, UserFigures
from reports.figures.policy import periods
from reports.figures.policy.advice import line

# A message is read in a mail or chat; the stored report has the rest.
LONGEST_TEXT = 6000
# Of the findings in an alert; the attached page has the rest.
MOST_LINES = 4
# An incident of unfair use that lasts longer adds a report to its alert.
REPORTED_AFTER = timedelta(hours=1)
# Days for which reports of incidents, and requested ones, are kept.
INCIDENT_DAYS, REQUESTED_DAYS = 400, 90
MORE = "…\nThe stored report has the rest."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """Stored reports. Schedules have their own retention."""

    # fmt: off
    own_days: float = threshold(400, "Keep weekly reports of users for", unit="d", ge=1, le=36_500)
    own_weekly: bool = threshold(True, "Send each user a weekly report of the own use",
        "By the mail channel to owners, after weeks in which the user held a GPU or waited for one."
        " Users may turn it off.")
    # fmt: on


def due(
    every: str, hour: int, reported_until: datetime | None, zone: str, now: datetime
) -> Period | None:
    """The last complete period, if it has no report yet and its time of day has come.

    Periods that were missed before it, because gpucoord did not run, are not made up for.
    """
    period = periods.calendar(every, zone, now)
    if reported_until is not None and reported_until >= period.until:
        return None
    return period if now >= period.until + timedelta(hours=hour) else None


def shortened(text: str, link: str) -> str:
    """The text of a message: the report, cut after a line, and the address of the stored one."""
    if len(text) > LONGEST_TEXT:
        text = text[:LONGEST_TEXT].rpartition("\n")[0] + "\n" + MORE
    return f"{text.rstrip()}\n\n{link}".rstrip()


def incident_title(person: str, program: str, job_ref: str, where: str, *, is_idle: bool) -> str:
    """Without a known user, no name is given. is_idle: it holds memory that it does not use."""
    subject = f"job {job_ref}" if job_ref else program or "process"
    if not person:
        kind = "Memory held idle on" if is_idle else "Unfair use of"
        return f"{kind} {where}: the owner of {subject} is unknown"
    deed = "holds memory idle" if is_idle else "violates the fair share"
    return f"{person}'s {subject} {deed} on {where}"


def incident_text(text: str, report: Report, link: str) -> str:
    """The text of the alert: the incident, what the report says about it, and its address."""
    entries = [*(line(v) for v in report.violations), *(r.text for r in report.recommendations)]
    return "\n".join([text, *(f"- {entry}" for entry in entries[:MOST_LINES]), link]).rstrip()


def own_summary(report: Report, user: str) -> str:
    """The user's week against those of the four weeks before in which GPUs were used.

    "" for a user who held no GPU and waited for none.
    """
    row = next((figures for figures in report.users if figures.user == user), None)
    if row is None:
        return ""
    return "\n".join([_week(row), *([row.right_size.text] if row.right_size else [])])


def _week(row: UserFigures) -> str:
    now = f"This week you used {row.used:.1f} GPU-hours"
    before = [point.used for point in row.trend if point.used > 0]
    if not before:
        return f"{now}. No use was recorded in the four weeks before."
    mean = sum(before) / len(before)
    weeks = "week" if len(before) == 1 else "weeks"
    return f"{now}. Mean of {len(before)} earlier {weeks} with use: {mean:.1f} GPU-hours."
