"""Admin: jobs, to look at, re-prioritise and cancel; their attempts, to look at."""

from __future__ import annotations

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

from monitor.admin.rows import ReadOnly
from monitor.formats import duration
from scheduler import store
from scheduler.changing import change_waiting
from scheduler.jobs import JobState
from scheduler.models import Attempt, Job, JobDependency
from scheduler.pages import job_lines

# A waiting job's may be changed; all else of a job is what happened.
CHANGEABLE = ("name", "priority")


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
    actions = ("cancel_selected",)
    inlines = (AttemptsOfJob,)
    fieldsets = (
        (None, {"fields": ("name", "owner", "priority", "page")}),
        ("What runs", {"fields": ("command", "argv", "cwd", "variables")}),
        (
            "What it asks for",
            {
                "fields": (
                    "gpus",
                    "memory",
                    "exclusive",
                    "gpu_model",
                    "capability",
                    "power",
                    "gpu_uuid",
                    "share_pct",
                    "cpus",
                    "memory_bytes",
                    "estimate",
                    "time_limit",
                )
            },
        ),
        (
            "When it runs, and when it yields",
            {
                "fields": (
                    "begin_at",
                    "array",
                    "array_index",
                    "array_limit",
                    "retries",
                    "failures",
                    "retry_at",
                    "preemptible",
                    "requeue",
                    "yield_signal",
                    "grace_s",
                    "requeues",
                    "held",
                    "held_by",
                )
            },
        ),
        (
            "What happened",
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
        """What ran stays on record; a waiting job is cancelled instead."""
        return False

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """A job is submitted by the form that all people use."""
        return redirect("job-new")

    def save_model(
        self, request: HttpRequest, obj: Job, form: ModelForm[Job], change: bool
    ) -> None:
        if not change_waiting(obj.pk, name=obj.name, priority=obj.priority):
            text = f"Job {obj.pk} has started meanwhile: nothing was changed."
            self.message_user(request, text, messages.WARNING)

    @admin.action(description="Cancel selected jobs", permissions=["change"])
    def cancel_selected(self, request: HttpRequest, chosen: QuerySet[Job]) -> None:
        who, now = request.user.get_username(), timezone.now()
        ids = list(chosen.values_list("pk", flat=True))
        done = sum(store.request_cancel(pk, who, now) for pk in ids)
        rest = len(ids) - done
        text = f"Cancelled {done} job{'' if done == 1 else 's'}."
        ended = f" {rest} had ended already, or are being stopped." if rest else ""
        self.message_user(request, text + ended, messages.SUCCESS if done else messages.INFO)

    @admin.display(description="job", ordering="id")
    def number(self, job: Job) -> str:
        return str(job.pk)

    @admin.display(description="state", ordering="state")
    def state_word(self, job: Job) -> str:
        return ", ".join(filter(None, (job_lines.badge(job)[0], job_lines.ending(job))))

    @admin.display(description="asks for")
    def asks_for(self, job: Job) -> str:
        return job_lines.requirement(job)

    @admin.display(description="memory on each GPU", empty_value="not declared")
    def memory(self, job: Job) -> str | None:
        return None if job.gpu_memory_bytes is None else job_lines.plain_gib(job.gpu_memory_bytes)

    @admin.display(description="takes about", empty_value="not said")
    def estimate(self, job: Job) -> str | None:
        return duration(job.estimate_s) if job.estimate_s else None

    @admin.display(description="time limit", empty_value="none")
    def time_limit(self, job: Job) -> str | None:
        return duration(job.time_limit_s) if job.time_limit_s else None

    @admin.display(description="variables", empty_value="none")
    def variables(self, job: Job) -> str | None:
        """Their names: values may be secrets."""
        return ", ".join(sorted(job.env)) or None

    @admin.display(description="why it waits", empty_value="-")
    def why_it_waits(self, job: Job) -> str | None:
        return "\n".join(blocker["text"] for blocker in job.blockers) or None

    @admin.display(description="its page")
    def page(self, job: Job) -> SafeString:
        return format_html('<a href="{}">log, timeline, cancel</a>', reverse("job", args=[job.pk]))


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
