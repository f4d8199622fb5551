"""REST: the notifications about own jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.urls import reverse
from ninja import Field, Query, Router, Schema

from monitor.api import PlainText, RequestBody, body_of, caller
from monitor.pages.requests import InvalidInput
from scheduler.facts.jobs import LONGEST_ADDRESS, LONGEST_QUICK_S, MOST_FAILURES, NoticeKind
from scheduler.jobs.notifications import step
from scheduler.models import NotificationSettings

router = Router()


class NotificationsBody(RequestBody):
    """The settings for all own jobs. Fields that are left out stay as they are."""

    kinds: list[PlainText] | None = Field(
        None, max_length=len(NoticeKind), description=f"Any of {', '.join(NoticeKind)}."
    )
    by_mail: bool | None = None
    by_browser: bool | None = Field(
        None, description="Open pages show messages, in browsers where you allow it."
    )
    pause_on_quick_failure: bool | None = Field(
        None, description="Hold further jobs of a program when its jobs fail in a row."
    )
    quick_failures: int | None = Field(
        None, ge=1, le=MOST_FAILURES, description="Failures in a row that hold further jobs."
    )
    quick_failure_s: int | None = Field(
        None, ge=1, le=LONGEST_QUICK_S, description="Seconds from the start to a quick failure."
    )
    service: PlainText | None = Field(
        None,
        max_length=LONGEST_ADDRESS,
        description="Apprise URL of an own service, such as ntfys://ntfy.sh/topic or "
        'jsons://host/path. "" removes it. It is stored encrypted and never shown.',
    )


class NotificationsAnswer(Schema):
    kinds: list[NoticeKind]
    by_mail: bool
    by_browser: bool
    pause_on_quick_failure: bool
    quick_failures: int
    quick_failure_s: int
    mail_problem: str | None = Field(description="Why mails do not reach you; null: they do.")
    service: str | None = Field(description="The kind of the own service; null: none.")
    service_problem: str | None


class BrowserNoticeRow(Schema):
    id: int
    title: str
    text: str
    created_at: datetime
    path: str = Field(description="Of the page of the job; of the list of jobs for several.")


class BrowserNoticesAnswer(Schema):
    enabled: bool = Field(description="Whether you chose messages in the browser.")
    newest: int = Field(description="The number of your newest message; 0: there is none.")
    items: list[BrowserNoticeRow] = Field(description="At most 20, the oldest first.")


@router.get(
    "", response=NotificationsAnswer, summary="Show notifications", url_name="notifications"
)
def see(request: HttpRequest) -> dict[str, Any]:
    """The events of your jobs that send you a message, and the ways of delivery."""
    person = caller(request)
    return _answer(person, step.settings_of(person))


@router.put("", response=NotificationsAnswer, summary="Change notifications")
def change(request: HttpRequest, new: NotificationsBody) -> dict[str, Any]:
    """Jobs can have further events of their own: field `notify` of a new job."""
    person = caller(request)
    before = step.settings_of(person)
    kinds = _kinds(before.kinds if new.kinds is None else new.kinds)
    by_mail = before.by_mail if new.by_mail is None else new.by_mail
    by_browser = before.by_browser if new.by_browser is None else new.by_browser
    try:
        after = step.save(
            person, kinds, by_mail=by_mail, by_browser=by_browser, address=new.service
        )
    except step.InvalidService as error:
        raise InvalidInput([("service", str(error))]) from None
    step.save_crash_guard(
        person,
        enabled=_chosen(new.pause_on_quick_failure, after.pause_on_quick_failure),
        failures=_chosen(new.quick_failures, after.quick_failures),
        seconds=_chosen(new.quick_failure_s, after.quick_failure_s),
    )
    return _answer(person, step.settings_of(person))


@router.get(
    "recent/",
    response=BrowserNoticesAnswer,
    summary="List recent notifications",
    url_name="recent-notifications",
)
def recent(
    request: HttpRequest,
    after: Annotated[
        int, Query(ge=0, le=2**63 - 1, description="Only those with a higher number.")
    ] = 0,
) -> dict[str, Any]:
    """Your messages of the last day for the browser. Open pages ask for them every 20 seconds."""
    person = caller(request)
    is_enabled = step.settings_of(person).by_browser
    notices = step.browser_notices(person, after) if is_enabled else []
    return {
        "enabled": is_enabled,
        "newest": step.newest_browser_notice(person) if is_enabled else 0,
        "items": [
            {
                "id": notice.pk,
                "title": notice.title,
                "text": notice.text,
                "created_at": notice.created_at,
                "path": _path(notice.about),
            }
            for notice in notices
        ],
    }


def _path(about: str) -> str:
    """about: "job:12:failed:7", with "+3" at its end for several jobs."""
    job = about.split(":")[1]
    return reverse("jobs") if "+" in about else reverse("job", args=[int(job)])


def _kinds(names: list[str]) -> list[NoticeKind]:
    try:
        return [NoticeKind(name) for name in dict.fromkeys(names)]
    except ValueError:
        text = f"Write any of: {', '.join(NoticeKind)}."
        raise InvalidInput([("kinds", text)]) from None


def _chosen(new: Any, before: Any) -> Any:
    return before if new is None else new


def _answer(person: User, row: NotificationSettings) -> dict[str, Any]:
    return body_of(
        NotificationsAnswer,
        row,
        mail_problem=step.mail_problem(person) or None,
        service=row.channel.service if row.channel else None,
        service_problem=(row.channel.problem or None) if row.channel else None,
    )
