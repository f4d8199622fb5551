"""Admin: API tokens, OS accounts, agents, alert channels and their messages.

Only superusers change the OS account, and each change counts: a user's jobs run as the account, so
assigning one gives its rights.
"""

from __future__ import annotations

import logging
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import ForeignKey, QuerySet
from django.forms import ChoiceField, ModelChoiceField, ModelForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template import Context
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from monitor import tasks
from monitor.admin.records import ReadOnly
from monitor.facts.accounts import TokenScope, scopes_of, scopes_text, up_to
from monitor.facts.incidents import TITLES
from monitor.incidents.alerts import steps
from monitor.incidents.alerts.senders import problem_of, service_of
from monitor.incidents.alerts.steps import encrypt
from monitor.journal import pages as journal_listing
from monitor.journal.facts import EVENTS, label
from monitor.journal.rows import audit
from monitor.models import Agent, ApiToken, Channel, Gpu, LoginLink, Message, OsAccount, Response
from monitor.owners import rows
from monitor.templatetags.monitor_tags import clock


class OsAccountForm(ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = OsAccount
        fields = ("user", "name")
        help_texts = {
            "user": "Jobs of this user run as the account, and its processes are shown as theirs.",
            "name": "Its name on the GPU servers, as `id -un` prints it.",
        }

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"].strip()
        if problem := rows.name_problem(name):
            raise ValidationError(problem)
        return name


@admin.register(OsAccount)
class OsAccountAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = OsAccountForm
    list_display = ("name", "user", "origin", "created_at")
    list_select_related = ("user",)
    search_fields = ("name", "user__username")
    date_hierarchy = "created_at"
    ordering = ("name",)
    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return _is_superuser(request)

    def has_change_permission(self, request: HttpRequest, obj: OsAccount | None = None) -> bool:
        return _is_superuser(request)

    def has_delete_permission(self, request: HttpRequest, obj: OsAccount | None = None) -> bool:
        return _is_superuser(request)

    def save_model(
        self, request: HttpRequest, obj: OsAccount, form: ModelForm[OsAccount], change: bool
    ) -> None:
        before = _pair(OsAccount.objects.filter(pk=obj.pk).select_related("user").first())
        if not change:
            obj.created_at = timezone.now()
        by = request.user.get_username()
        obj.origin = f"assigned by {by}"[:80]
        super().save_model(request, obj, form, change)
        _note(f"{by} assigned the OS account {obj.name} to {obj.user}", by, before, _pair(obj))

    def delete_model(self, request: HttpRequest, obj: OsAccount) -> None:
        by, before = request.user.get_username(), _pair(obj)
        super().delete_model(request, obj)
        _note(f"{by} removed the OS account {obj.name} of {obj.user}", by, before, None)


def _note(text: str, by: str, before: object, after: object) -> None:
    names = before or after
    subject = f"user {names['user']}" if isinstance(names, dict) else ""
    audit.note("OS_ACCOUNT_CHANGED", text, by=by, now=timezone.now(), subject=subject,
               before=before, after=after)  # fmt: skip


def _pair(row: OsAccount | None) -> dict[str, Any] | None:
    return None if row is None else {"user": row.user.get_username(), "account": row.name}


def _is_superuser(request: HttpRequest) -> bool:
    return bool(request.user.is_active and getattr(request.user, "is_superuser", False))


SCOPES = [scopes_text(up_to(scope)) for scope in TokenScope]
logger = logging.getLogger(__name__)


class TokenAdminForm(ModelForm):  # type: ignore[type-arg]
    scopes = ChoiceField(
        choices=[(text, text) for text in SCOPES],
        initial=SCOPES[-1],
        required=False,
        help_text="read: see what the user sees. submit: also submit and change own jobs."
        " operate: also the rights of an operator, if the user is one.",
    )

    class Meta:
        help_texts = {
            "name": "The program or machine that uses it.",
            "expires_at": "Empty: it does not expire.",
        }

    def clean_scopes(self) -> str:
        return self.cleaned_data["scopes"] or SCOPES[-1]


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A new token is shown once; deleting a token revokes it."""

    form = TokenAdminForm
    list_display = (
        "beginning", "user", "name", "scopes", "host", "created_at", "last_used_at", "expires_at",
    )  # fmt: skip
    list_filter = (("expires_at", admin.EmptyFieldListFilter), "user")
    list_select_related = ("user",)
    search_fields = ("prefix", "name", "user__username")
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    fields = ("user", "name", "scopes", "expires_at")

    @admin.display(description="token", ordering="prefix")
    def beginning(self, token: ApiToken) -> str:
        return f"{token.prefix}…"

    def get_readonly_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> Any:
        if obj is None:
            return ()
        return ("user", "scopes", "beginning", "created_at", "last_used_at")

    def get_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> Any:
        stored = () if obj is None else ("beginning", "created_at", "last_used_at")
        return (*self.fields, *stored)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"user": request.user.pk, **super().get_changeform_initial_data(request)}

    def formfield_for_foreignkey(
        self, db_field: ForeignKey[Any, Any], request: Any, **kwargs: Any
    ) -> ModelChoiceField[Any] | None:
        """A token is its user's whole power here: others' are for superusers to make."""
        if not request.user.is_superuser:
            kwargs["queryset"] = User.objects.filter(pk=request.user.pk)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def has_change_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return _may_edit(request, obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return _may_edit(request, obj) and super().has_delete_permission(request, obj)

    def save_model(
        self, request: HttpRequest, obj: ApiToken, form: ModelForm[ApiToken], change: bool
    ) -> None:
        if change:
            obj.save(update_fields=["name", "expires_at"])
            return
        until = obj.expires_at
        scopes = scopes_of(obj.scopes)
        row, text = rows.create_token(obj.user, timezone.now(), name=obj.name, scopes=scopes)
        row.expires_at = until
        row.save(update_fields=["expires_at"])
        obj.__dict__.update(row.__dict__)
        request.made_token = text  # type: ignore[attr-defined]
        owner, by = row.user.get_username(), request.user.get_username()
        about = {"kind": "TOKEN_MADE", "owner": owner, "by": by, "number": row.pk}
        logger.info("%s made a token of %s", by, owner, extra=about)

    def response_add(
        self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show it now: not by a message, which would travel in a cookie."""
        context = {
            **self.admin_site.each_context(request),
            "title": "Token made",
            "token": obj,
            "text": request.made_token,  # type: ignore[attr-defined]
            "opts": self.opts,
        }
        response = TemplateResponse(request, "admin/token_made.html", context)
        response["Cache-Control"] = "no-store"
        return response


def _may_edit(request: HttpRequest, token: ApiToken | None) -> bool:
    """Only superusers change or revoke the tokens of superusers."""
    is_ordinary = token is None or not token.user.is_superuser
    return is_ordinary or request.user.is_superuser


class AgentForm(ModelForm):  # type: ignore[type-arg]
    class Meta:
        help_texts = {
            "running_jobs": "Further jobs of the agent wait.",
            "gpu_minutes": "Further jobs of the agent wait for the next day.",
            "stopped_at": "Requests of the agent are refused from then on. Empty: it may submit.",
        }


@admin.register(Agent)
class AgentAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Limits of agents. Their users make them on the page of the account."""

    form = AgentForm
    list_display = (
        "name", "user", "running_jobs", "gpu_minutes", "created_at", "stopped_at",
    )  # fmt: skip
    list_select_related = ("user",)
    search_fields = ("name", "user__username")
    date_hierarchy = "created_at"
    ordering = ("user__username", "name")
    fields = ("user", "name", "running_jobs", "gpu_minutes", "created_at", "stopped_at")
    readonly_fields = ("user", "name", "created_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(LoginLink)
class LoginLinkAdmin(ReadOnly):
    """Links that were not used yet; they expire within a minute."""

    list_display = ("user", "expires_at")
    list_select_related = ("user",)
    search_fields = ("user__username",)
    date_hierarchy = "expires_at"
    ordering = ("-expires_at",)
    fields = ("user", "expires_at")


SHOWN = 10
SEVERAL = "Empty = all. Ctrl-click to select several, or to deselect one."
NO_SERVICE = (
    "This is no address of a service, or something is missing in it. Each service has its own"
    " form, such as slack://TOKEN/TOKEN/TOKEN, mailtos://USER:PASSWORD@HOST?from=ADDRESS or"
    " jsons://HOST/PATH: see the list of apprise. It may name no file of this server (template)."
)
PLAIN = (
    "name", "enabled", "service", "to_owners", "least", "kinds", "rules", "gpus", "hosts",
    "quiet_from", "quiet_until", "working_days_only", "errors_at_once",
)  # fmt: skip

SEEN = ("service", "failing_since", "problem", "latest")
FIELDSETS: list[tuple[str | None, dict[str, Any]]] = [
    (None, {"fields": ("name", "address", "enabled", "to_owners")}),
    ("Filter", {"fields": ("least", "kinds", "rules", "gpus", "hosts")}),
    (
        "Schedule",
        {"fields": (("quiet_from", "quiet_until"), "working_days_only", "errors_at_once")},
    ),
]


def _kinds() -> list[tuple[str, Any]]:
    return [
        (group, [(group, f"all {group} events"), *((kind, label(kind)) for kind in kinds)])
        for group, kinds in EVENTS.items()
    ]


def _hosts() -> list[tuple[str, str]]:
    names = Gpu.objects.order_by("host").values_list("host", flat=True).distinct()
    return [(name, name) for name in names]


class Several(forms.MultipleChoiceField):
    """A choice of several that may be left empty: then it means all."""

    def __init__(self, choices: Any, label: str) -> None:
        super().__init__(choices=choices, label=label, required=False, help_text=SEVERAL)


class ChannelForm(forms.ModelForm):  # type: ignore[type-arg]
    """The address is written and never shown."""

    address = forms.CharField(
        required=False,
        strip=True,
        max_length=2000,
        widget=forms.PasswordInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )
    kinds = Several(_kinds, "Events")
    rules = Several(list(TITLES.items()), "Rules of incidents")
    gpus = Several(journal_listing.gpus, "GPUs")
    hosts = Several(_hosts, "Hosts")

    class Meta:
        model = Channel
        fields = (
            "name", "address", "enabled", "to_owners", "least", "kinds", "rules", "gpus", "hosts",
            "quiet_from", "quiet_until", "working_days_only", "errors_at_once",
        )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        is_new = self.instance.pk is None
        self.fields["address"].required = is_new
        self.fields["address"].help_text = (
            "Apprise URL, such as mailtos://… It is stored encrypted and never shown again."
            if is_new
            else "Stored and never shown. Fill in only to replace it."
        )
        if is_new:
            self.fields["kinds"].initial = [group for group in EVENTS if group != "jobs"]

    def clean_address(self) -> str:
        address: str = self.cleaned_data["address"]
        if address and service_of(address) is None:
            raise forms.ValidationError(NO_SERVICE)
        if address and (problem := problem_of(address, steps.network_limits())):
            raise forms.ValidationError(problem)
        return address

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if cleaned.get("address") and (service := service_of(cleaned["address"])):
            self.instance.service, self.instance.is_mail = service.name, service.is_mail
            self.instance.encrypted_address = encrypt(cleaned["address"])
        if cleaned.get("to_owners") and not self.instance.is_mail:
            self.add_error("to_owners", "Only a mail server can write to each owner.")
        if bool(cleaned.get("quiet_from")) != bool(cleaned.get("quiet_until")):
            self.add_error("quiet_until", "Quiet hours need a beginning and an end.")
        return cleaned


@admin.register(Channel)
class ChannelAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Every change is audited, without the address."""

    form = ChannelForm
    change_form_template = "admin/channel_form.html"
    list_display = ("name", "service", "enabled", "to_owners", "least", "works", "worked_at")
    list_filter = ("enabled", "service", ("failing_since", admin.EmptyFieldListFilter))
    search_fields = ("name", "service")
    ordering = ("name",)

    @admin.display(description="works", boolean=True)
    def works(self, channel: Channel) -> bool | None:
        return False if channel.failing_since else True if channel.worked_at else None

    @admin.display(description="last messages")
    def latest(self, channel: Channel) -> SafeString:
        newest = channel.messages.order_by("-id")[:SHOWN]
        if not newest:
            return SafeString("None yet.")
        return format_html_join(
            "",
            "<div>{} · <b>{}</b> · {}{}</div>",
            ((_local(m), m.state, m.title, f" · {m.problem}" if m.problem else "") for m in newest),
        )

    def get_fieldsets(self, request: HttpRequest, obj: Channel | None = None) -> Any:
        """The form in sections, followed by the last messages."""
        status = [("Status", {"fields": SEEN})] if obj else []
        return [*FIELDSETS, *status]

    def get_readonly_fields(self, request: HttpRequest, obj: Channel | None = None) -> Any:
        return () if obj is None else SEEN

    def response_add(
        self, request: HttpRequest, obj: Channel, post_url_continue: str | None = None
    ) -> HttpResponse:
        """To where the button for a test is, unless another channel is to be added."""
        if "_addanother" in request.POST or "_popup" in request.POST:
            return super().response_add(request, obj, post_url_continue)
        messages.success(request, f"{obj.name} is saved. Send a test to see whether it works.")
        return redirect(reverse("admin:monitor_channel_change", args=[obj.pk]))

    @method_decorator(sensitive_post_parameters("address"))
    def changeform_view(self, *args: Any, **kwargs: Any) -> Any:
        return super().changeform_view(*args, **kwargs)

    def save_model(
        self, request: HttpRequest, obj: Channel, form: forms.ModelForm[Channel], change: bool
    ) -> None:
        before = Channel.objects.filter(pk=obj.pk).first() if change else None
        if before is None or (obj.enabled and not before.enabled):
            steps.switch_on(obj)
        if "address" in form.changed_data:
            obj.failing_since, obj.problem = None, ""
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            text = f"{obj.name}: {', '.join(form.changed_data) or 'nothing'} changed"
            _note_of_channel(request, "CHANNEL_SAVED", obj, text, before=before, after=obj)

    def delete_model(self, request: HttpRequest, obj: Channel) -> None:
        with transaction.atomic():
            _note_of_channel(request, "CHANNEL_DELETED", obj, f"{obj.name} deleted", before=obj)
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Channel]) -> None:
        for channel in queryset:
            self.delete_model(request, channel)

    def get_urls(self) -> list[URLPattern]:
        test = self.admin_site.admin_view(require_POST(self.send_test))
        mine = path("<int:pk>/test/", test, name="monitor_channel_test")
        return [mine, *super().get_urls()]

    def send_test(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Queue a test message like any other; the page shows the result."""
        channel = get_object_or_404(Channel, pk=pk)
        if not self.has_change_permission(request, channel):
            return HttpResponse(status=403)
        now, user = timezone.now(), request.user
        with transaction.atomic():
            steps.write_test(channel, user.get_username(), getattr(user, "email", ""), now)
            _note_of_channel(
                request, "CHANNEL_TESTED", channel, f"A test was sent to {channel.name}"
            )
            tasks.queue(steps.TASK)
        messages.info(request, "The test message is queued. Reload this page to see the result.")
        return redirect(reverse("admin:monitor_channel_change", args=[pk]))


@admin.register(Message)
class MessageAdmin(ReadOnly):
    list_display = ("created_at", "channel", "state", "title", "person", "attempts", "problem")
    list_filter = ("state", "channel", "severity", "rule")
    list_select_related = ("channel",)
    search_fields = ("title", "person", "about")
    date_hierarchy = "created_at"
    ordering = ("-id",)
    actions = ("send_again",)

    def has_send_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("monitor.change_message")

    @admin.action(description="Try selected messages again now", permissions=["send"])
    def send_again(self, request: HttpRequest, queryset: QuerySet[Message]) -> None:
        tried = queryset.exclude(state=Message.State.SENT).update(
            state=Message.State.WAITING, attempts=0, due_at=timezone.now()
        )
        self.message_user(request, f"{tried} messages are queued again.")


@admin.register(Response)
class ResponseAdmin(ReadOnly):
    list_display = ("at", "incident", "step", "is_dry_run", "state", "text", "undone_at")
    list_filter = ("state", "step", "is_dry_run")
    list_select_related = ("incident",)
    search_fields = ("text", "incident__text")
    date_hierarchy = "at"
    ordering = ("-id",)


def _note_of_channel(
    request: HttpRequest,
    action: str,
    channel: Channel,
    text: str,
    before: Channel | None = None,
    after: Channel | None = None,
) -> None:
    audit.note(
        action,
        text,
        by=request.user.get_username(),
        now=timezone.now(),
        subject=f"channel {channel.pk}",
        before=before and _plain(before),
        after=after and _plain(after),
    )


def _plain(channel: Channel) -> dict[str, Any]:
    """The part that every reader of the audit may see."""
    values = {name: getattr(channel, name) for name in PLAIN}
    return {name: str(v) if name.startswith("quiet_") and v else v for name, v in values.items()}


def _local(message: Message) -> SafeString:
    return clock(Context({"now": timezone.now()}), message.created_at)
