"""Actions on stored reports: make one on request, and hand out its files."""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.http import Http404, HttpResponse

from monitor.incidents.alerts.senders import NOTHING, Attachment, Enclosure
from monitor.journal.rows import audit
from monitor.owners.identity.policy import Viewer
from reports.figures.actions import limited
from reports.figures.facts import Period, Report
from reports.figures.policy import periods
from reports.models import ReportSchedule, StoredFile, StoredReport
from reports.render.actions import MEDIA, MailFrame, mail
from reports.render.wording import text as texts
from reports.schedule import rows, step
from reports.schedule.policy import REQUESTED_DAYS

DAY = timedelta(days=1)
ATTACHED = ("pdf", "html")


class TooManyReports(Exception):
    """The user has stored too many reports today; the text is a sentence."""


def store_requested(
    last: str, begin: str, end: str, scope: str, viewer: Viewer, now: datetime
) -> StoredReport:
    """Make a report as the viewer may see it, and store it.

    Raises what `limited` raises, ReportRefused, and TooManyReports.
    """
    period = periods.parse(last, begin, end, settings.TIME_ZONE, now)
    if not viewer.operator and rows.requested_since(viewer.username, now - DAY) >= rows.MOST_A_DAY:
        raise TooManyReports(f"You may store {rows.MOST_A_DAY} reports a day. Try again tomorrow.")
    report = limited(period, periods.scope(scope), viewer, now)
    row = step.make(
        report,
        StoredReport.Kind.REQUESTED,
        texts.title(report),
        viewer,
        by=viewer.username,
        days=REQUESTED_DAYS,
    )
    text = f"{viewer.username} stored the report {row.pk} of {row.scope}, {period.label}"
    audit.note("REPORT_STORED", text, by=viewer.username, now=now, subject=f"report {row.pk}")
    return row


class NotSent(Exception):
    """The report is not sent; the text is a sentence."""


def last_period(schedule: ReportSchedule, now: datetime) -> Period:
    """The last complete period of the schedule."""
    return periods.calendar(schedule.every, settings.TIME_ZONE, now)


def preview(schedule: ReportSchedule, now: datetime) -> str:
    """The mail about the last complete period as HTML, with the chart in it. Nothing is stored.

    Raises what `limited` raises.
    """
    report = _newest(schedule, now)
    chart, problem = step.mail_chart(report)
    frame = MailFrame(
        title=step.title_of(schedule, report),
        reason=step.reason_of(schedule),
        has_failed_chart=bool(problem),
    )
    picture = f"data:image/png;base64,{b64encode(chart).decode()}" if chart else ""
    return mail(report, frame, picture)


def send_now(schedule: ReportSchedule, by: str, now: datetime) -> StoredReport:
    """Store and send the report about the last complete period, which the schedule does not repeat.

    Raises NotSent without an enabled channel and right after another sending, and what `limited`
    raises.
    """
    if not step.receivers(schedule).exists():
        raise NotSent(f"The schedule {schedule.name} has no enabled alert channel. Add one.")
    report = _newest(schedule, now)
    with transaction.atomic():
        stored = step.send(schedule, report, by, now)
        if not rows.note_sent(schedule, stored.until_at, now):
            raise NotSent("This report was sent less than a minute ago. Try again in a minute.")
        text = f"{by} sent the report {stored.pk} of the schedule {schedule.name}"
        audit.note("REPORT_SENT", text, by=by, now=now, subject=f"report {stored.pk}")
    return stored


def _newest(schedule: ReportSchedule, now: datetime) -> Report:
    scope = periods.scope(schedule.scope)
    return limited(last_period(schedule, now), scope, step.OPERATOR, now)


def visible(pk: int, viewer: Viewer) -> StoredReport:
    """Raises Http404 also for a report that the viewer may not open."""
    row = rows.visible_to(viewer).filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(f"There is no stored report {pk}.")
    return row


def enclosure(key: str) -> Enclosure:
    """Sent with a message about a stored report: a file, and the mail with its chart."""
    if not key.isdigit():
        return NOTHING
    wanted = (*ATTACHED, *rows.MAIL)
    stored = StoredFile.objects.filter(report=int(key), format__in=wanted).select_related("report")
    files = {file.format: file for file in stored}
    attached = [_attached(files[name]) for name in ATTACHED if name in files]
    html, chart = (files.get(name) for name in rows.MAIL)
    return Enclosure(
        attached[0] if attached else None,
        bytes(html.content).decode() if html else "",
        (Attachment(step.CHART, "image/png", bytes(chart.content)),) if chart else (),
    )


def _attached(file: StoredFile) -> Attachment:
    return Attachment(_name(file.report, file.format), MEDIA[file.format][0], bytes(file.content))


def download(row: StoredReport, format: str, by: str, now: datetime) -> HttpResponse:
    """The stored file, which is audited. Raises Http404 if it was not made."""
    file = StoredFile.objects.filter(report=row, format=format).first()
    if file is None:
        raise Http404(row.missing.get(format) or f"Report {row.pk} has no file in this format.")
    text = f"{by} downloaded the stored report {row.pk} ({row.title}) as {format}"
    audit.note("REPORT_DOWNLOADED", text, by=by, now=now, subject=f"report {row.pk}")
    media = MEDIA[format][0]
    response = HttpResponse(bytes(file.content), content_type=media)
    if format != "text":
        response["Content-Disposition"] = f'attachment; filename="{_name(row, format)}"'
    response["Cache-Control"] = "private, no-store"
    return response


def _name(row: StoredReport, format: str) -> str:
    return f"gpu-report-{row.pk}-{row.until_at:%Y-%m-%d}.{MEDIA[format][1]}"
