"""Admin: lists of the rows that gpucoord writes, thresholds, and the audit trail.

The page /hosts/ has the same actions with explanations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from monitor.facts import formats
from monitor.facts.gpus import GpuField
from monitor.facts.readings import GPU_FIELDS, HostState
from monitor.gpus.rows import hosts as host_rows
from monitor.journal.rows import audit
from monitor.models import (
    AuditEntry,
    Claim,
    Constraint,
    Counter,
    CpuScanState,
    Event,
    Exemption,
    Gpu,
    GpuClosure,
    GpuHour,
    GpuMinute,
    Host,
    HostHour,
    HostMinute,
    HostSample,
    Incident,
    ItemFault,
    JoinToken,
    LatestSnapshot,
    Lease,
    Pattern,
    PeriodicTask,
    PolicyValues,
    ProcessHour,
    ProcessMinute,
    ProcessUse,
    Sample,
)
from monitor.thresholds import rows as thresholds
from monitor.thresholds.pages import PolicyForm


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that gpucoord writes itself: a manual change would be overwritten or break something."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, *_: object) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class Forgettable(ReadOnly):
    """Rows that may be deleted: gpucoord writes them again if necessary."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.delete_{self.opts.model_name}")


@admin.register(Gpu)
class GpuAdmin(Forgettable):
    list_display = ("index", "host", "name", "state", "memory", "uuid", "simulated", "last_seen_at")
    list_display_links = ("index", "uuid")
    list_filter = ("host", "state", "simulated")
    search_fields = ("uuid", "name", "host", "pci_id")
    date_hierarchy = "first_seen_at"
    ordering = ("host", "index")

    @admin.display(description="memory", ordering="memory_total_bytes")
    def memory(self, gpu: Gpu) -> str:
        return formats.gib(gpu.memory_total_bytes)


@admin.register(Event)
class EventAdmin(ReadOnly):
    list_display = ("at", "severity", "kind", "text", "owner", "host")
    list_filter = ("severity", "kind", "host")
    search_fields = ("text", "owner", "job_ref", "gpu_uuid", "kind")
    date_hierarchy = "at"
    ordering = ("-at", "-id")


@admin.register(Claim)
class ClaimAdmin(ReadOnly):
    list_display = (
        "job_ref",
        "owner",
        "kind",
        "gpu_uuid",
        "host",
        "memory",
        "exclusive",
        "from_at",
        "until_at",
    )
    list_filter = (("until_at", admin.EmptyFieldListFilter), "kind", "exclusive", "host")
    search_fields = ("job_ref", "owner", "gpu_uuid")
    date_hierarchy = "from_at"
    ordering = ("-id",)

    @admin.display(description="memory", ordering="memory_bytes")
    def memory(self, claim: Claim) -> str:
        return formats.gib(claim.memory_bytes)


@admin.register(GpuClosure)
class GpuClosureAdmin(ReadOnly):
    list_display = ("gpu_uuid", "kind", "reason", "by", "host", "from_at", "until_at")
    list_filter = (("until_at", admin.EmptyFieldListFilter), "kind", "host")
    search_fields = ("gpu_uuid", "reason", "by", "job_ref")
    date_hierarchy = "from_at"
    ordering = ("-id",)


@admin.register(Constraint)
class ConstraintAdmin(ReadOnly):
    list_display = ("text", "kind", "subject", "host", "from_at", "until_at")
    list_filter = (("until_at", admin.EmptyFieldListFilter), "kind", "host")
    search_fields = ("text", "kind", "subject", "host")
    date_hierarchy = "from_at"
    ordering = ("-id",)


@admin.register(Lease)
class LeaseAdmin(ReadOnly):
    list_display = (
        "name",
        "pid",
        "epoch",
        "ticks",
        "last_tick_at",
        "lateness_p99_ms",
    )
    list_filter = ("loop", "host", ("last_error", admin.EmptyFieldListFilter))
    search_fields = ("name", "last_error")
    date_hierarchy = "acquired_at"
    ordering = ("name",)


@admin.register(PeriodicTask)
class PeriodicTaskAdmin(ReadOnly):
    list_display = ("name", "queued_at", "done_at", "result")
    search_fields = ("name", "result")
    date_hierarchy = "queued_at"
    ordering = ("name",)


@admin.register(Counter)
class CounterAdmin(ReadOnly):
    list_display = ("name", "subject", "host", "value")
    list_filter = ("name", "host")
    search_fields = ("name", "subject")
    ordering = ("name", "host", "subject")


@admin.register(LatestSnapshot)
class LatestSnapshotAdmin(Forgettable):
    list_display = ("host", "seq", "at")
    list_filter = ("host",)
    search_fields = ("host",)
    date_hierarchy = "at"
    ordering = ("host",)


class Seconds(ReadOnly):
    """Rows by the second: there are many, so nothing here counts them all."""


def _column(figure: GpuField) -> Callable[[Sample], str]:
    @admin.display(description=figure.label, ordering=figure.name)
    def text(sample: Sample) -> str:
        return figure.text(figure.of(sample))

    return text


@admin.register(Sample)
class SampleAdmin(Seconds):
    list_display = ("t", "gpu", *(_column(figure) for figure in GPU_FIELDS if figure.is_sampled))
    list_filter = ("gpu__host", "gpu__index")
    list_select_related = ("gpu",)
    search_fields = ("gpu__uuid", "gpu__host")
    ordering = ("-id",)


@admin.register(HostSample)
class HostSampleAdmin(Seconds):
    list_display = ("t", "host", "cpu_pct", "load_1", "memory", "io_pressure_pct")
    list_filter = ("host",)
    search_fields = ("host",)
    ordering = ("-id",)

    @admin.display(description="memory used", ordering="memory_used_bytes")
    def memory(self, sample: HostSample) -> str:
        return formats.gib(sample.memory_used_bytes)


@admin.register(GpuMinute, GpuHour)
class GpuRollupAdmin(Seconds):
    list_display = ("t", "gpu", "seen_s", "utilization_pct_s", "energy_j", "temperature_max_c")
    list_filter = ("gpu__host", "gpu__index")
    list_select_related = ("gpu",)
    search_fields = ("gpu__uuid", "gpu__host")
    ordering = ("-id",)


@admin.register(HostMinute, HostHour)
class HostRollupAdmin(Seconds):
    list_display = ("t", "host", "seen_s", "cpu_pct_s", "cpu_max_pct", "load_max")
    list_filter = ("host",)
    search_fields = ("host",)
    ordering = ("-id",)


@admin.register(ProcessUse)
class ProcessUseAdmin(ReadOnly):
    list_display = ("program", "user", "pid", "gpu", "first_seen_at", "sm_s", "known_s", "source")
    list_filter = ("host", "source", "gpu__index")
    list_select_related = ("gpu",)
    search_fields = ("program", "user", "job_owner", "job_ref", "pid", "gpu__uuid")
    date_hierarchy = "first_seen_at"
    ordering = ("-id",)


@admin.register(ProcessMinute, ProcessHour)
class ProcessRollupAdmin(Seconds):
    list_display = ("t", "use", "sm_s", "held_s", "known_s", "joules")
    list_select_related = ("use",)
    search_fields = ("use__user", "use__program", "use__gpu__uuid")
    ordering = ("-id",)


@admin.register(Incident)
class IncidentAdmin(ReadOnly):
    list_display = ("text", "rule", "severity", "user", "host", "opened_at", "closed_at")
    list_filter = (
        ("closed_at", admin.EmptyFieldListFilter),
        "rule",
        "severity",
        "host",
    )
    search_fields = ("text", "user", "job_owner", "job_ref", "program", "pid")
    date_hierarchy = "opened_at"
    ordering = ("-opened_at", "-id")


@admin.register(Exemption)
class ExemptionAdmin(ReadOnly):
    list_display = ("scope", "name", "rule", "by", "from_at", "until_at", "reason")
    list_filter = ("scope", "rule")
    search_fields = ("name", "reason", "by")
    date_hierarchy = "from_at"
    ordering = ("-id",)


@admin.register(CpuScanState)
class CpuScanStateAdmin(Forgettable):
    list_display = ("host", "at")
    search_fields = ("host",)
    ordering = ("host",)


@admin.register(Pattern)
class PatternAdmin(ReadOnly):
    list_display = ("text", "user", "hits", "chances", "mean_pct", "found_at")
    list_filter = ("host", "days")
    search_fields = ("text", "user", "program")
    ordering = ("-hits", "id")


@admin.register(ItemFault)
class ItemFaultAdmin(ReadOnly):
    list_display = ("item", "part", "host", "fault", "failures", "since_at", "retry_at")
    list_filter = ("part", "host")
    search_fields = ("item", "fault")
    date_hierarchy = "since_at"
    ordering = ("-last_at",)


Action = Callable[["HostAdmin", HttpRequest, QuerySet[Host]], None]


def _sets(state: HostState, label: str) -> Action:
    @admin.action(description=f"{label} the selected hosts")
    def action(_admin: HostAdmin, request: HttpRequest, chosen: QuerySet[Host]) -> None:
        by, now = request.user.get_username(), timezone.now()
        done = [host_rows.change(host.name, state, by, "", now) for host in chosen]
        messages.success(request, f"{sum(done)} hosts are {state.value} now.")

    action.__name__ = label.lower()
    return action


@admin.register(Host)
class HostAdmin(ReadOnly):
    list_display = (
        "name", "state", "version", "profile", "address", "started_at", "silent_since_at",
        "down_at",
    )  # fmt: skip
    list_filter = ("state", "version", ("down_at", admin.EmptyFieldListFilter))
    search_fields = ("name", "address")
    date_hierarchy = "joined_at"
    ordering = ("name",)
    actions = (
        _sets(HostState.DRAINED, "Drain"),
        _sets(HostState.ACTIVE, "Enable"),
        _sets(HostState.DISABLED, "Disable"),
        "remove",
    )

    @admin.action(description="Remove the selected hosts without contact")
    def remove(self, request: HttpRequest, chosen: QuerySet[Host]) -> None:
        for host in chosen:
            fact = host_rows.find(host.name)
            if fact and (
                problem := host_rows.remove(fact, request.user.get_username(), timezone.now())
            ):
                messages.error(request, problem)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # The list with its actions; a single host is shown without fields to edit.
        return obj is None and request.user.has_perm("monitor.change_host")


@admin.register(JoinToken)
class JoinTokenAdmin(Forgettable):
    """Tokens that no host has used yet; the page of hosts makes them."""

    list_display = ("made_by", "created_at", "expires_at")
    search_fields = ("made_by",)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    fields = ("made_by", "created_at", "expires_at")


class UserFilter(admin.AllValuesFieldListFilter):
    """The filter "By user" of a column `by`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = "user"


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnly):
    list_display = ("at", "by", "action", "subject", "text")
    list_filter = ("action", ("by", UserFilter))
    search_fields = ("subject", "text", "by")
    date_hierarchy = "at"
    ordering = ("-at", "-id")


@admin.register(PolicyValues)
class PolicyValuesAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A page for each registered policy, whether it was changed or not."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only values of former policies can be deleted; a policy is reset in its form."""
        is_former = obj is not None and obj.pk not in thresholds.registered()
        return is_former and super().has_delete_permission(request, obj)

    def delete_model(self, request: HttpRequest, obj: PolicyValues) -> None:
        thresholds.forget(obj.pk, by=request.user.get_username(), now=timezone.now())

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """All policies, and which of them differ from the defaults."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        in_force = thresholds.ThresholdsInForce("")
        listed = [
            {
                "title": thresholds.title(name),
                "about": thresholds.about(name),
                "url": address(name),
                "count": len(settings := in_force.settings(name)),
                "unlike": [each for each in settings if not each.is_shipped or each.hosts],
            }
            for name in thresholds.registered()
        ]
        context = self._context(request, "Thresholds") | {
            "listed": listed,
            "former": thresholds.former_policies(),
        }
        return TemplateResponse(request, "admin/policies.html", context)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: Any = None,
    ) -> HttpResponse:
        """The thresholds of one policy; `?host=`: those of one host."""
        name = unquote(object_id)
        if name not in thresholds.registered():
            raise Http404(f"There is no policy {name}.")
        may_change = self.has_change_permission(request)
        if not (may_change or self.has_view_permission(request)):
            raise PermissionDenied
        if request.method == "POST" and not may_change:
            raise PermissionDenied
        host, known = request.GET.get("host", ""), _known_hosts()
        if host and host not in known:
            raise Http404(f"There is no host {host}.")
        data = request.POST if request.method == "POST" else None
        form = PolicyForm(name, thresholds.ThresholdsInForce(host).settings(name), data, host)
        if data is not None and form.is_valid():
            return self._changed(request, name, form, host)
        context = self._context(request, thresholds.title(name)) | {
            "name": name,
            "host": host,
            "hosts": known,
            "about": thresholds.about(name),
            "form": form,
            "may_change": may_change,
            "profile": thresholds.profile(),
            "entries": audit.about(thresholds.subject(name), 20),
        }
        return TemplateResponse(request, "admin/policy.html", context)

    def _changed(
        self, request: HttpRequest, name: str, form: PolicyForm, host: str
    ) -> HttpResponse:
        by = request.user.get_username()
        if thresholds.change(name, form.changes, by=by, now=timezone.now(), host=host):
            messages.success(request, "Changed. The loops follow within seconds.")
        else:
            messages.info(request, "Nothing was changed.")
        return HttpResponseRedirect(address(name, host))

    def _context(self, request: HttpRequest, title: str) -> dict[str, Any]:
        return {**self.admin_site.each_context(request), "title": title, "opts": self.opts}


def _known_hosts() -> list[str]:
    """Those of this service, and those that have values of their own."""
    return sorted({host.name for host in host_rows.all_hosts()} | thresholds.hosts_with_changes())


def address(name: str, host: str = "") -> str:
    """The address of a policy's form."""
    path = reverse("admin:monitor_policyvalues_change", args=[quote(name)])
    return f"{path}?{urlencode({'host': host})}" if host else path
