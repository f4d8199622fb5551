"""Admin: thresholds, and the audit trail."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from monitor.admin.base import ReadOnly
from monitor.gpus.hosts import rows as hosts
from monitor.journal.rows import audit
from monitor.models import AuditEntry, PolicyValues
from monitor.thresholds import rows as thresholds
from monitor.thresholds.pages import PolicyForm


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
    return sorted({host.name for host in hosts.all_hosts()} | thresholds.hosts_with_changes())


def address(name: str, host: str = "") -> str:
    """The address of a policy's form."""
    path = reverse("admin:monitor_policyvalues_change", args=[quote(name)])
    return f"{path}?{urlencode({'host': host})}" if host else path
