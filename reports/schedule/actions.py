"""Actions on stored reports: make one on request, and hand out its files."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.http import Http404, HttpResponse

from monitor.incidents.alerts.senders import Attachment
from monitor.journal.rows import audit
from monitor.owners.identity.policy import Viewer
from reports.figures.actions import limited
from reports.models import StoredFile, StoredReport
from reports.periods import policy as periods
from reports.render.actions import MEDIA
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


def visible(pk: int, viewer: Viewer) -> StoredReport:
    """Raises Http404 also for a report that the viewer may not open."""
    row = rows.visible_to(viewer).filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(f"There is no stored report {pk}.")
    return row


def attachment(key: str) -> Attachment | None:
    """The file of a stored report that is sent with messages: the PDF, or else the HTML file."""
    if not key.isdigit():
        return None
    files = StoredFile.objects.filter(report=int(key), format__in=ATTACHED).select_related("report")
    file = max(files, key=lambda stored: stored.format == "pdf", default=None)
    if file is None:
        return None
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
