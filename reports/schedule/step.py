"""Steps: make the reports that are due, store them, hand them to alert channels and to users.

Channels send, retry and report failures as for alerts. A report that cannot be made is tried again
with growing pauses; the admin and an event say why.
"""

from __future__ import annotations

import logging
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpResponse
from django.utils import timezone
from msgspec.structs import replace

from monitor.facts.incidents import IDLE_HELD
from monitor.incidents.alerts.policy import INCIDENT, AlertPolicy, Notice, due_at, pause, wants
from monitor.incidents.alerts.senders import NOTHING, Attachment, Enclosure
from monitor.incidents.alerts.steps import link, message, person_of, route_of
from monitor.journal.rows import audit, events
from monitor.models import Channel, Incident, Message
from monitor.owners import rows as looks
from monitor.owners.policy import Viewer
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from reports.figures.actions import NotAllowed, ScopeNotFound, build, limited
from reports.figures.facts import Period, Report, ReportRefused, Scope, ScopeKind
from reports.figures.policy import periods
from reports.models import ReportSchedule, ReportSubscription, StoredFile, StoredReport
from reports.render import actions as rendering
from reports.render import wording
from reports.render.actions import FORMATS, MEDIA, MailFrame, NoTypst, mail, mail_picture, render
from reports.render.wording import Cover
from reports.schedule import policy, rows
from reports.schedule.policy import INCIDENT_DAYS, REPORTED_AFTER, REQUESTED_DAYS, DeliveryPolicy
from scheduler.jobs.notifications import step as notifications
from scheduler.jobs.notifications.policy import Letter

logger = logging.getLogger(__name__)
NO_CHART = {"kind": "REPORT_FAILED"}
OPERATOR = Viewer("", operator=True)
GPUCOORD = "gpucoord"
Kind = StoredReport.Kind
# Name of a stored report in the messages that it is attached to, and of the chart in its mail.
ATTACHED_REPORT = "report"
CHART = "chart.png"
# Where the stored files and those that are missing have it.
CHART_FILE = rows.MAIL[1]
OWN_TITLE = "Your week on the GPUs"
WHY_OWN = "You get this mail after each week in which you held a GPU or waited for one."
# Of a message about an incident: the notification and the warnings have lower numbers.
REPORT_NUMBER = 3
# A message that is due sooner may be on its way already.
SOON = timedelta(minutes=1)


def make(
    report: Report,
    kind: StoredReport.Kind,
    title: str,
    viewer: Viewer,
    *,
    by: str = GPUCOORD,
    days: float,
    schedule: ReportSchedule | None = None,
    incident: Incident | None = None,
    cover: Cover | None = None,
    no_chart: str = "",
) -> StoredReport:
    """Render the report in every format and store it for `days`; with a cover, on one page.

    A format that cannot be made does not prevent the others; the row names it.
    no_chart: why its mail has none.
    """
    report = replace(report, url=thresholds.current(AlertPolicy).address)
    looks.refresh(report.made_at)
    files, missing = {}, {CHART_FILE: no_chart} if no_chart else {}
    for name in FORMATS:
        try:
            files[name] = render(report, name, cover)
        except NoTypst as error:
            missing[name] = str(error)
        except Exception as error:
            missing[name] = _reason(error)
    period = report.period
    row = StoredReport(
        kind=kind,
        title=title[:200],
        viewer="" if viewer.operator else viewer.username,
        scope=report.scope.text,
        period=period.name,
        from_at=period.since,
        until_at=period.until,
        made_at=report.made_at,
        made_by=by,
        keep_until=rows.keep_until(report.made_at, days),
        schedule=schedule,
        incident=incident,
        missing=missing,
    )
    return rows.store(row, files)


def _add_mail(
    report: Report, stored: StoredReport, chart: bytes | None, reason: str, lead: str = ""
) -> None:
    """Store the form of the report that its mail has."""
    frame = MailFrame(
        title=stored.title,
        lead=lead,
        has_failed_chart=CHART_FILE in stored.missing,
        link=_address(stored),
        reason=reason,
        opt_out=_page("/reports/stored/") if stored.kind == Kind.OWN else "",
    )
    html = mail(report, frame, f"cid:{CHART}" if chart else "")
    files = (html.encode(), chart)
    rows.add(stored, {name: file for name, file in zip(rows.MAIL, files, strict=True) if file})


def mail_chart(report: Report) -> tuple[bytes | None, str]:
    """The chart of the mail, and why it cannot be made: a mail without it is better than none.

    Without typst there is none, which is no problem.
    """
    looks.refresh(report.made_at)
    try:
        return mail_picture(report), ""
    except NoTypst:
        return None, ""
    except Exception as error:
        logger.exception("The chart of a report cannot be made; its mail has none", extra=NO_CHART)
        return None, _reason(error)


def is_due(now: datetime) -> bool:
    """Whether there is anything to make or to delete."""
    weekly = is_weekly()
    return (
        (weekly and rows.new_users().exists())
        or any(_due_period(schedule, now) for schedule in rows.schedules(now))
        or any(_own_period(subscription, now) for subscription in rows.subscriptions(now, weekly))
        or bool(rows.unfair_incidents(now, REPORTED_AFTER))
        or rows.has_old(now)
    )


def make_due(now: datetime) -> int:
    """Make all reports that are due, delete the old ones; how many were made."""
    isolation = ItemIsolation(settings.CONFIG.node, "reports")
    made = 0
    weekly = is_weekly()
    if weekly:
        rows.subscribe_new_users(now)
    for schedule in rows.schedules(now):
        if period := _due_period(schedule, now):
            work = partial(_scheduled, schedule, period, now)
            made += _tried(schedule, period, work, now)
    for subscription in rows.subscriptions(now, weekly):
        if period := _own_period(subscription, now):
            made += _tried(subscription, period, partial(_own, subscription, period, now), now)
    unfair = rows.unfair_incidents(now, REPORTED_AFTER)
    reported = isolation.each(
        unfair, lambda row: f"report of incident {row.pk}", lambda row: _incident(row, now), now
    )
    rows.delete_old(now)
    return made + len(reported)


def is_weekly() -> bool:
    """Whether users get a weekly report without asking for it."""
    weekly = thresholds.current(DeliveryPolicy).own_weekly
    return weekly and notifications.mail_channel() is not None


def _due_period(schedule: ReportSchedule, now: datetime) -> Period | None:
    zone = settings.TIME_ZONE
    return policy.due(schedule.every, schedule.hour, schedule.reported_until, zone, now)


def _own_period(subscription: ReportSubscription, now: datetime) -> Period | None:
    return policy.due("week", 0, subscription.reported_until, settings.TIME_ZONE, now)


def _tried(
    row: ReportSchedule | ReportSubscription,
    period: Period,
    work: Callable[[], StoredReport | None],
    now: datetime,
) -> bool:
    """Whether a report was made. If it failed, the row says why, and when it is tried again."""
    try:
        with transaction.atomic():
            made = work()
            if not rows.note_reported(row, period.until, now):
                transaction.set_rollback(True)
                return False
    except Exception as error:
        row.refresh_from_db()
        row.failures += 1
        row.retry_at = now + pause(row.failures)
        row.problem = _reason(error)
        row.save()
        if row.failures == 1:
            text = f"The report {row} cannot be made: {row.problem}"
            events.add("REPORT_FAILED", text, now=now, severity="warning")
        return False
    return made is not None


def _reason(error: Exception) -> str:
    """A refusal's own sentence; of a fault, its type too."""
    if isinstance(error, ReportRefused | ScopeNotFound | NotAllowed):
        return str(error)[:300]
    return "".join(traceback.format_exception_only(error)).strip()[:300]


def _scheduled(schedule: ReportSchedule, period: Period, now: datetime) -> StoredReport:
    return send(
        schedule, build(period, periods.scope(schedule.scope), OPERATOR, now), GPUCOORD, now
    )


def send(schedule: ReportSchedule, report: Report, by: str, now: datetime) -> StoredReport:
    """Store the report, and put it on its way to the channels of the schedule."""
    chart, no_chart = mail_chart(report)
    stored = make(
        report,
        Kind.SCHEDULED,
        title_of(schedule, report),
        OPERATOR,
        by=by,
        days=schedule.keep_days,
        schedule=schedule,
        no_chart=no_chart,
    )
    _add_mail(report, stored, chart, reason_of(schedule))
    _send(stored, receivers(schedule), wording.text(report), "info", now)
    return stored


def title_of(schedule: ReportSchedule, report: Report) -> str:
    return f"{schedule.name}: {wording.title(report)}"


def reason_of(schedule: ReportSchedule) -> str:
    return f"Sent each {schedule.every} by the report schedule {schedule.name} of gpucoord."


def receivers(schedule: ReportSchedule) -> QuerySet[Channel]:
    return schedule.channels.filter(enabled=True, owner=None, to_owners=False)


def _own(subscription: ReportSubscription, period: Period, now: datetime) -> StoredReport | None:
    """Through the user's own ways: mail, and a service of their own. Nothing after an idle week."""
    name = subscription.user.username
    viewer, scope = Viewer(name), Scope(ScopeKind.USER, name)
    report = build(period, scope, viewer, now)
    if not (summary := policy.own_summary(report, name)):
        return None
    days = thresholds.current(DeliveryPolicy).own_days
    chart, no_chart = mail_chart(report)
    stored = make(report, Kind.OWN, OWN_TITLE, viewer, days=days, no_chart=no_chart)
    _add_mail(report, stored, chart, WHY_OWN, summary)
    text = f"{summary}\n\n{wording.text(report)}"
    letter = Letter(
        owner=name,
        about=f"report:{stored.pk}",
        title=stored.title,
        text=policy.shortened(text, _address(stored)),
        attachment=_attachment(stored),
    )
    to = notifications.recipients_of([name])[name]
    notifications.store(letter, to, notifications.mail_channel(), now)
    return stored


def _incident(incident: Incident, now: datetime) -> StoredReport:
    """One page about the user since the incident began, for the channels that want the incident."""
    person = person_of(incident)
    scope = Scope(ScopeKind.USER, person) if person else Scope(ScopeKind.GPU, incident.gpu_id or "")
    if not scope.name:
        scope = Scope()
    since = incident.since_at.isoformat()
    period = periods.parse("", since, now.isoformat(), settings.TIME_ZONE, now)
    report = build(period, scope, OPERATOR, now)
    where = f"GPU {incident.gpu.index} of {incident.host}" if incident.gpu else incident.host
    is_idle = incident.rule == IDLE_HELD
    title = policy.incident_title(
        person, incident.program, incident.job_ref, where, is_idle=is_idle
    )
    days = INCIDENT_DAYS
    stored = make(
        report, Kind.INCIDENT, title, OPERATOR, days=days, incident=incident,
        cover=Cover(title, incident.text),
    )  # fmt: skip
    notice = Notice(
        about=f"incident:{incident.pk}",
        at=now,
        severity=incident.severity,
        kind=INCIDENT,
        rule=incident.rule,
        host=incident.host,
        gpu_uuid=incident.gpu_id or "",
        person=person,
        title=title,
        text=policy.incident_text(incident.text, report, _address(stored)),
    )
    channels = Channel.objects.filter(enabled=True, owner=None, to_owners=False)
    for channel in channels:
        if wants(route_of(channel), notice):
            _add_to_alert(stored, channel, notice, now)
    return stored


def _add_to_alert(stored: StoredReport, channel: Channel, notice: Notice, now: datetime) -> None:
    """Attach the report to the alert that waits for a later hour, or send it after the alert."""
    alerts = Message.objects.filter(channel=channel, about=notice.about, number=0)
    later = alerts.filter(state=Message.State.WAITING, attempts=0, due_at__gt=now + SOON)
    if later.update(attachment=_attachment(stored), text=notice.text):
        return
    policy_, zone = thresholds.current(AlertPolicy), timezone.get_default_timezone()
    due = due_at(route_of(channel), notice.severity, policy_, now, zone)
    row = message(channel, notice, now, due)
    row.number, row.attachment = REPORT_NUMBER, _attachment(stored)
    Message.objects.bulk_create([row], ignore_conflicts=True)


def _send(
    stored: StoredReport, channels: Iterable[Channel], text: str, severity: str, now: datetime
) -> None:
    """Put a message with the report on its way to each channel, in its hours."""
    alerts, zone = thresholds.current(AlertPolicy), timezone.get_default_timezone()
    body = policy.shortened(text, _address(stored))
    Message.objects.bulk_create(
        Message(
            channel=channel,
            about=f"report:{stored.pk}",
            severity=severity,
            title=stored.title,
            text=body,
            attachment=_attachment(stored),
            created_at=now,
            due_at=due_at(route_of(channel), severity, alerts, now, zone),
        )
        for channel in channels
    )


def _attachment(stored: StoredReport) -> str:
    return f"{ATTACHED_REPORT}:{stored.pk}"


def _address(stored: StoredReport) -> str:
    return _page(f"/reports/stored/{stored.pk}/")


def _page(path: str) -> str:
    return link(thresholds.current(AlertPolicy), path)


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
    row = make(
        report,
        StoredReport.Kind.REQUESTED,
        wording.title(report),
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
    chart, problem = mail_chart(report)
    frame = MailFrame(
        title=title_of(schedule, report),
        reason=reason_of(schedule),
        has_failed_chart=bool(problem),
    )
    picture = f"data:image/png;base64,{b64encode(chart).decode()}" if chart else ""
    return mail(report, frame, picture)


def send_now(schedule: ReportSchedule, by: str, now: datetime) -> StoredReport:
    """Store and send the report about the last complete period, which the schedule does not repeat.

    Raises NotSent without an enabled channel and right after another sending, and what `limited`
    raises.
    """
    if not receivers(schedule).exists():
        raise NotSent(f"The schedule {schedule.name} has no enabled alert channel. Add one.")
    report = _newest(schedule, now)
    with transaction.atomic():
        stored = send(schedule, report, by, now)
        if not rows.note_sent(schedule, stored.until_at, now):
            raise NotSent("This report was sent less than a minute ago. Try again in a minute.")
        text = f"{by} sent the report {stored.pk} of the schedule {schedule.name}"
        audit.note("REPORT_SENT", text, by=by, now=now, subject=f"report {stored.pk}")
    return stored


def _newest(schedule: ReportSchedule, now: datetime) -> Report:
    scope = periods.scope(schedule.scope)
    return limited(last_period(schedule, now), scope, OPERATOR, now)


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
        (Attachment(CHART, "image/png", bytes(chart.content)),) if chart else (),
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
    return rendering.download(bytes(file.content), format, _name(row, format))


def _name(row: StoredReport, format: str) -> str:
    return f"gpu-report-{row.pk}-{row.until_at:%Y-%m-%d}.{MEDIA[format][1]}"
