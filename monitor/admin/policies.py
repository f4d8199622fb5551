"""Admin: thresholds, and who changed what."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from monitor import audit, policies
from monitor.admin.rows import ReadOnly
from monitor.models import AuditEntry, PolicyValues
from monitor.policy_forms import PolicyForm


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnly):
    list_display = ("at", "by", "action", "subject", "text")
    list_filter = ("action", "by")
    search_fields = ("subject", "text", "by")
    date_hierarchy = "at"
    ordering = ("-at", "-id")


@admin.register(PolicyValues)
class PolicyValuesAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A page for each policy that is registered, whether anybody changed it or not."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """All policies, and of which something is otherwise than shipped."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        in_force = policies.InForce()
        listed = [
            {
                "title": policies.title(name),
                "about": policies.about(name),
                "url": address(name),
                "count": len(settings := in_force.settings(name)),
                "unlike": [setting for setting in settings if not setting.is_shipped],
            }
            for name in policies.registered()
        ]
        context = self._context(request, "Policies") | {"listed": listed}
        return TemplateResponse(request, "admin/policies.html", context)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: Any = None,
    ) -> HttpResponse:
        """The thresholds of one policy."""
        name = unquote(object_id)
        if name not in policies.registered():
            raise Http404(f"There is no policy {name}.")
        may_change = self.has_change_permission(request)
        if not (may_change or self.has_view_permission(request)):
            raise PermissionDenied
        if request.method == "POST" and not may_change:
            raise PermissionDenied
        data = request.POST if request.method == "POST" else None
        form = PolicyForm(name, policies.InForce().settings(name), data)
        if data is not None and form.is_valid():
            return self._changed(request, name, form)
        context = self._context(request, policies.title(name)) | {
            "name": name,
            "about": policies.about(name),
            "form": form,
            "may_change": may_change,
            "profile": policies.profile(),
            "entries": audit.about(policies.subject(name), 20),
        }
        return TemplateResponse(request, "admin/policy.html", context)

    def _changed(self, request: HttpRequest, name: str, form: PolicyForm) -> HttpResponse:
        by = request.user.get_username()
        if policies.change(name, form.changes, by=by, now=timezone.now()):
            messages.success(request, "Changed. The loops follow within seconds.")
        else:
            messages.info(request, "Nothing was changed.")
        return HttpResponseRedirect(address(name))

    def _context(self, request: HttpRequest, title: str) -> dict[str, Any]:
        return {**self.admin_site.each_context(request), "title": title, "opts": self.opts}


def address(name: str) -> str:
    """Where a policy is changed."""
    return reverse("admin:monitor_policyvalues_change", args=[quote(name)])
