"""Admin: jobs (edit, cancel, hold, release), and read-only attempts, keys and yield requests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from monitor.admin.records import ReadOnly
from scheduler.facts.field_types import Group, JobField, Kind
from scheduler.facts.job_fields import JOB_FIELDS, stored_fields
from scheduler.facts.jobs import JobState
from scheduler.jobs.pages import serialise as job_lines
from scheduler.jobs.rows import changes as job_changes
from scheduler.models import (
    Attempt,
    GpuHold,
    Job,
    JobDependency,
    JobInput,
    SubmissionKey,
    YieldRequest,
)

# Operators may change these of a waiting job; everything else is a record.
CHANGEABLE = tuple(field.name for field in JOB_FIELDS if field.operators_change)


def _shown_as(group: Group) -> list[str]:
    """The names of the read-only values of these fields."""
    return [f"shown_{f.name}" for f in stored_fields() if f.group is group and _is_shown(f)]


def _is_shown(field: JobField) -> bool:
    """Fields that can be changed or need other words are shown by their own columns."""
    return field.name not in {*CHANGEABLE, "command", "cwd", "env"}


def _display(field: JobField) -> Callable[[Job], Any]:
    """The value of a job's field under the label of the form."""

    def shown(job: Job) -> Any:
        value = getattr(job, field.column)
        if value is None or isinstance(value, bool | datetime):
            return value
        return field.type.to_text(value) or None

    label = field.label.partition(":")[0]
    if field.type.kind is Kind.FLAG:
        return admin.display(description=label, boolean=True)(shown)
    return admin.display(description=label, empty_value="not set")(shown)


class AttemptsOfJob(admin.TabularInline):  # type: ignore[type-arg]
    model = Attempt
    extra = 0
    can_delete = False
    show_change_link = True
    ordering = ("number",)
    fields = ("number", "host", "account", "pid", "started_at", "ended_at", "outcome", "exit_code")
    readonly_fields = fields

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("number", "name", "owner", "state_word", "priority", "asks_for", "submitted_at")
    list_display_links = ("number", "name")
    list_filter = ("state", "outcome", "priority", "exclusive", "owner")
    list_select_related = ("owner",)
    search_fields = ("=id", "name", "command", "owner__username")
    date_hierarchy = "submitted_at"
    ordering = ("-id",)
    show_full_result_count = False
    actions = ("cancel_selected", "hold_selected", "release_selected")
    inlines = (AttemptsOfJob,)
    fieldsets = (
        (None, {"fields": ("name", "owner", "priority", "page")}),
        ("Command", {"fields": ("command", "argv", "cwd", "variables")}),
        (
            "Requested",
            {
                "fields": (
                    *_shown_as(Group.BASICS),
                    *_shown_as(Group.GPU),
                    *_shown_as(Group.HOST),
                    *_shown_as(Group.DETAILS),
                )
            },
        ),
        (
            "Start, arrays and retries",
            {
                "fields": (
                    *_shown_as(Group.START),
                    "array",
                    "array_index",
                    "failures",
                    "retry_at",
                    "held",
                    "held_by",
                )
            },
        ),
        ("Preemption", {"fields": (*_shown_as(Group.YIELD), "requeues")}),
        (
            "Record",
            {
                "fields": (
                    "state",
                    "outcome",
                    "exit_code",
                    "signal",
                    "problem",
                    "why_it_waits",
                    "submitted_at",
                    "started_at",
                    "ended_at",
                    "cancel_requested_at",
                    "cancelled_by",
                )
            },
        ),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Job | None = None) -> Any:
        every = [name for _, options in self.fieldsets for name in options["fields"]]
        return [name for name in every if name not in CHANGEABLE]

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        waits = obj is None or obj.state == JobState.QUEUED.value
        return waits and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        """Jobs are not deleted; cancel a waiting job instead."""
        return False

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Jobs are submitted with the form of the jobs page."""
        return redirect("job-new")

    def save_model(
        self, request: HttpRequest, obj: Job, form: ModelForm[Job], change: bool
    ) -> None:
        columns = {name: getattr(obj, name) for name in CHANGEABLE}
        jobs, by = Job.objects.filter(pk=obj.pk), request.user.get_username()
        if not job_changes.change(
            jobs, by, timezone.now(), ", ".join(form.changed_data), **columns
        ):
            text = f"Job {obj.pk} has started meanwhile: nothing was changed."
            self.message_user(request, text, messages.WARNING)

    @admin.action(description="Cancel selected jobs", permissions=["change"])
    def cancel_selected(self, request: HttpRequest, chosen: QuerySet[Job]) -> None:
        by, now = request.user.get_username(), timezone.now()
        total = chosen.count()
        done = job_changes.cancel(self._jobs(chosen), by, now)
        others = "had ended already, or are being stopped"
        self._report(request, "Cancelled", done, total - done, others)

    @admin.action(description="Hold selected jobs", permissions=["change"])
    def hold_selected(self, request: HttpRequest, chosen: QuerySet[Job]) -> None:
        total, by = chosen.count(), request.user.get_username()
        done = job_changes.hold(self._jobs(chosen), by, timezone.now())
        self._report(request, "Held", done, total - done, "are held or no longer wait")

    @admin.action(description="Release selected jobs", permissions=["change"])
    def release_selected(self, request: HttpRequest, chosen: QuerySet[Job]) -> None:
        total, by = chosen.count(), request.user.get_username()
        done = job_changes.release(self._jobs(chosen), by, timezone.now())
        self._report(request, "Released", done, total - done, "are not held")

    @staticmethod
    def _jobs(chosen: QuerySet[Job]) -> QuerySet[Job]:
        """The same rows without the joins of filters and searches."""
        return Job.objects.filter(pk__in=chosen.order_by().values("pk"))

    def _report(self, request: HttpRequest, did: str, done: int, rest: int, others: str) -> None:
        text = f"{did} {done} job{'' if done == 1 else 's'}."
        more = f" {rest} {others}." if rest else ""
        level = messages.SUCCESS if done else messages.INFO
        self.message_user(request, text + more, level)

    @admin.display(description="job", ordering="id")
    def number(self, job: Job) -> str:
        return str(job.pk)

    @admin.display(description="state", ordering="state")
    def state_word(self, job: Job) -> str:
        return ", ".join(filter(None, (job_lines.badge(job)[0], job_lines.ending(job))))

    @admin.display(description="requested")
    def asks_for(self, job: Job) -> str:
        return job_lines.requirement(job)

    @admin.display(description="variables", empty_value="none")
    def variables(self, job: Job) -> str | None:
        """Their names: values may be secrets."""
        return ", ".join(job.env_names) or None

    @admin.display(description="why it waits", empty_value="-")
    def why_it_waits(self, job: Job) -> str | None:
        return "\n".join(blocker["text"] for blocker in job.blockers) or None

    @admin.display(description="its page")
    def page(self, job: Job) -> SafeString:
        return format_html('<a href="{}">log, timeline, cancel</a>', reverse("job", args=[job.pk]))


for _field in filter(_is_shown, stored_fields()):
    setattr(JobAdmin, f"shown_{_field.name}", staticmethod(_display(_field)))


@admin.register(Attempt)
class AttemptAdmin(ReadOnly):
    list_display = ("job", "number", "host", "account", "outcome", "placed_at", "ended_at")
    list_filter = (("ended_at", admin.EmptyFieldListFilter), "outcome", "host")
    list_select_related = ("job",)
    search_fields = ("=job__id", "job__name", "job__owner__username", "account", "host")
    date_hierarchy = "placed_at"
    ordering = ("-id",)
    exclude = ("nonce",)


@admin.register(JobDependency)
class JobDependencyAdmin(ReadOnly):
    list_display = ("job", "after", "on")
    list_filter = ("after",)
    list_select_related = ("job", "on")
    search_fields = ("=job__id", "=on__id", "job__owner__username")


@admin.register(JobInput)
class JobInputAdmin(ReadOnly):
    list_display = ("job", "size")
    list_select_related = ("job",)
    search_fields = ("=job__id", "job__owner__username")
    ordering = ("-job",)
    # It may have secrets, as a job's variables.
    exclude = ("data", "environment")


@admin.register(SubmissionKey)
class SubmissionKeyAdmin(ReadOnly):
    fields = ("user", "key", "job", "prompt", "created_at")
    list_display = ("key", "user", "job", "prompt", "created_at")
    list_select_related = ("user", "job", "prompt")
    search_fields = ("key", "user__username", "=job__id", "=prompt__id")
    date_hierarchy = "created_at"
    ordering = ("-created_at",)


@admin.register(YieldRequest)
class YieldRequestAdmin(ReadOnly):
    list_display = (
        "attempt", "kind", "code", "for_job", "counts", "asked_at", "deadline", "withdrawn_at",
    )  # fmt: skip
    list_filter = ("kind", "code", "counts")
    list_select_related = ("attempt", "for_job")
    search_fields = ("=attempt__job__id", "=for_job__id", "attempt__job__owner__username")
    date_hierarchy = "asked_at"
    ordering = ("-id",)


@admin.register(GpuHold)
class GpuHoldAdmin(ReadOnly):
    list_display = ("host", "gpu_uuid", "job", "until")
    list_filter = ("host",)
    list_select_related = ("job",)
    search_fields = ("=job__id", "gpu_uuid")
