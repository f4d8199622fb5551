"""REST: the notifications about own jobs."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja import Field, Router, Schema

from monitor.api.input import InvalidInput, PlainText, RequestBody
from scheduler.facts.notices import NoticeKind
from scheduler.models import NotificationSettings
from scheduler.notifications import actions, rows

router = Router()
LONGEST_ADDRESS = 2000


class NotificationsBody(RequestBody):
    """The settings for all own jobs. Fields that are left out stay as they are."""

    kinds: list[PlainText] | None = Field(
        None, max_length=len(NoticeKind), description=f"Any of {', '.join(NoticeKind)}."
    )
    by_mail: bool | None = None
    service: PlainText | None = Field(
        None,
        max_length=LONGEST_ADDRESS,
        description="Apprise URL of an own service, such as ntfys://ntfy.sh/topic or "
        'jsons://host/path. "" removes it. It is stored encrypted and never shown.',
    )


class NotificationsAnswer(Schema):
    kinds: list[NoticeKind]
    by_mail: bool
    mail_problem: str | None = Field(description="Why mails do not reach you; null: they do.")
    service: str | None = Field(description="The kind of the own service; null: none.")
    service_problem: str | None


@router.get(
    "", response=NotificationsAnswer, summary="Show notifications", url_name="notifications"
)
def see(request: HttpRequest) -> dict[str, Any]:
    """The events of your jobs that send you a message, and the ways of delivery."""
    person = _person(request)
    return _answer(person, rows.settings_of(person))


@router.put("", response=NotificationsAnswer, summary="Change notifications")
def change(request: HttpRequest, new: NotificationsBody) -> dict[str, Any]:
    """Jobs can have further events of their own: field `notify` of a new job."""
    person = _person(request)
    before = rows.settings_of(person)
    kinds = _kinds(before.kinds if new.kinds is None else new.kinds)
    by_mail = before.by_mail if new.by_mail is None else new.by_mail
    try:
        after = actions.save(person, kinds, by_mail=by_mail, address=new.service)
    except actions.InvalidService as error:
        raise InvalidInput([("service", str(error))]) from None
    return _answer(person, after)


def _kinds(names: list[str]) -> list[NoticeKind]:
    try:
        return [NoticeKind(name) for name in dict.fromkeys(names)]
    except ValueError:
        text = f"Write any of: {', '.join(NoticeKind)}."
        raise InvalidInput([("kinds", text)]) from None


def _answer(person: User, row: NotificationSettings) -> dict[str, Any]:
    return {
        "kinds": row.kinds,
        "by_mail": row.by_mail,
        "mail_problem": rows.mail_problem(person) or None,
        "service": row.channel.service if row.channel else None,
        "service_problem": (row.channel.problem or None) if row.channel else None,
    }


def _person(request: HttpRequest) -> User:
    person: User = request.auth  # type: ignore[attr-defined]
    return person
