"""Page and REST: the notifications that a user gets about own jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods
from ninja import Field, Query, Router, Schema

from monitor.api import InvalidInput, PlainText, RequestBody, body_of
from monitor.facts.input_rules import character_problem
from scheduler.facts.jobs import (
    LONGEST_ADDRESS,
    LONGEST_QUICK_S,
    MOST_FAILURES,
    NOTICE_WORDS,
    NoticeKind,
)
from scheduler.jobs.notifications import rows, step
from scheduler.models import NotificationSettings


class NotificationForm(forms.Form):
    """The address of the own service is written and never shown."""

    kinds = forms.MultipleChoiceField(
        label="Notify me when",
        choices=[(kind.value, words) for kind, words in NOTICE_WORDS.items()],
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    by_mail = forms.BooleanField(label="By mail", required=False)
    by_browser = forms.BooleanField(
        label="In the browser",
        required=False,
        help_text="While a page of gpucoord is open in a browser where you allow it.",
    )
    pause_on_quick_failure = forms.BooleanField(
        label="Hold further jobs of a program when its jobs fail quickly",
        required=False,
        help_text="They wait until you release them. The same for one job: "
        "gpucoord submit --pause-on-quick-failure.",
    )
    quick_failures = forms.IntegerField(
        label="Failures in a row", required=False, min_value=1, max_value=MOST_FAILURES
    )
    quick_failure_s = forms.IntegerField(
        label="Seconds from the start to a quick failure",
        required=False,
        min_value=1,
        max_value=LONGEST_QUICK_S,
    )
    service = forms.CharField(
        label="Your own notification service",
        required=False,
        max_length=LONGEST_ADDRESS,
        help_text="Apprise URL, such as ntfys://ntfy.sh/TOPIC, slack://TOKEN/TOKEN/TOKEN or "
        "jsons://HOST/PATH. It is stored encrypted and never shown.",
        widget=forms.PasswordInput({"autocomplete": "off", "spellcheck": "false"}),
    )
    remove_service = forms.BooleanField(label="Remove the stored service", required=False)

    def clean_service(self) -> str:
        text: str = self.cleaned_data["service"]
        if problem := character_problem(text):
            raise forms.ValidationError(problem)
        return text

    def save(self, person: User) -> bool:
        """False: the address cannot be used; the form says why."""
        values = self.cleaned_data
        address = "" if values["remove_service"] else values["service"] or None
        kinds = [NoticeKind(kind) for kind in values["kinds"]]
        try:
            by_mail, by_browser = values["by_mail"], values["by_browser"]
            step.save(person, kinds, by_mail=by_mail, by_browser=by_browser, address=address)
        except step.InvalidService as error:
            self.add_error("service", str(error))
            return False
        before = rows.settings_of(person)
        step.save_crash_guard(
            person,
            enabled=values["pause_on_quick_failure"],
            failures=values["quick_failures"] or before.quick_failures,
            seconds=values["quick_failure_s"] or before.quick_failure_s,
        )
        return True


@sensitive_post_parameters("service")
@require_http_methods(["GET", "HEAD", "POST"])
def own(request: HttpRequest) -> HttpResponse:
    """Shows and changes the settings of the user who is logged in."""
    person = cast(User, request.user)
    row = rows.settings_of(person)
    form = NotificationForm(request.POST or None, initial=_initial(row))
    if request.method == "POST" and form.is_valid() and form.save(person):
        messages.success(request, "Notifications saved.")
        return redirect("notifications")
    context = {"form": form, "row": row, "mail_problem": rows.mail_problem(person)}
    status = 422 if form.errors else 200
    return render(request, "account/notifications.html", context, status=status)


def _initial(row: NotificationSettings) -> dict[str, Any]:
    names = (
        "kinds", "by_mail", "by_browser", "pause_on_quick_failure", "quick_failures",
        "quick_failure_s",
    )  # fmt: skip
    return {name: getattr(row, name) for name in names}


# REST: the notifications about own jobs.


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
    person = _person(request)
    return _answer(person, rows.settings_of(person))


@router.put("", response=NotificationsAnswer, summary="Change notifications")
def change(request: HttpRequest, new: NotificationsBody) -> dict[str, Any]:
    """Jobs can have further events of their own: field `notify` of a new job."""
    person = _person(request)
    before = rows.settings_of(person)
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
    return _answer(person, rows.settings_of(person))


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
    person = _person(request)
    is_enabled = rows.settings_of(person).by_browser
    notices = rows.browser_notices(person, after) if is_enabled else []
    return {
        "enabled": is_enabled,
        "newest": rows.newest_browser_notice(person) if is_enabled else 0,
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
        mail_problem=rows.mail_problem(person) or None,
        service=row.channel.service if row.channel else None,
        service_problem=(row.channel.problem or None) if row.channel else None,
    )


def _person(request: HttpRequest) -> User:
    person: User = request.auth  # type: ignore[attr-defined]
    return person
