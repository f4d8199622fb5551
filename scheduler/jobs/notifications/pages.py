"""The notifications that a user gets about own jobs."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from monitor.facts.input_rules import character_problem
from scheduler.facts.jobs import (
    LONGEST_ADDRESS,
    LONGEST_QUICK_S,
    MOST_FAILURES,
    NOTICE_WORDS,
    NoticeKind,
)
from scheduler.jobs.notifications import step
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
        before = step.settings_of(person)
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
    row = step.settings_of(person)
    form = NotificationForm(request.POST or None, initial=_initial(row))
    if request.method == "POST" and form.is_valid() and form.save(person):
        messages.success(request, "Notifications saved.")
        return redirect("notifications")
    context = {"form": form, "row": row, "mail_problem": step.mail_problem(person)}
    status = 422 if form.errors else 200
    return render(request, "account/notifications.html", context, status=status)


def _initial(row: NotificationSettings) -> dict[str, Any]:
    names = (
        "kinds", "by_mail", "by_browser", "pause_on_quick_failure", "quick_failures",
        "quick_failure_s",
    )  # fmt: skip
    return {name: getattr(row, name) for name in names}
