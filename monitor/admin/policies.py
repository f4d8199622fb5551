"""Admin: thresholds, and the audit trail."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from monitor.admin.base import ReadOnly
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
        in_force = thresholds.ThresholdsInForce()
        listed = [
            {
                "title": thresholds.title(name),
                "about": thresholds.about(name),
                "url": address(name),
                "count": len(settings := in_force.settings(name)),
                "unlike": [setting for setting in settings if not setting.is_shipped],
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
        """The thresholds of one policy."""
        name = unquote(object_id)
        if name not in thresholds.registered():
            raise Http404(f"There is no policy {name}.")
        may_change = self.has_change_permission(request)
        if not (may_change or self.has_view_permission(request)):
            raise PermissionDenied
        if request.method == "POST" and not may_change:
            raise PermissionDenied
        data = request.POST if request.method == "POST" else None
        form = PolicyForm(name, thresholds.ThresholdsInForce().settings(name), data)
        if data is not None and form.is_valid():
            return self._changed(request, name, form)
        context = self._context(request, thresholds.title(name)) | {
            "name": name,
            "about": thresholds.about(name),
            "form": form,
            "may_change": may_change,
            "profile": thresholds.profile(),
            "entries": audit.about(thresholds.subject(name), 20),
        }
        return TemplateResponse(request, "admin/policy.html", context)

    def _changed(self, request: HttpRequest, name: str, form: PolicyForm) -> HttpResponse:
        by = request.user.get_username()
        if thresholds.change(name, form.changes, by=by, now=timezone.now()):
            messages.success(request, "Changed. The loops follow within seconds.")
        else:
            messages.info(request, "Nothing was changed.")
        return HttpResponseRedirect(address(name))

    def _context(self, request: HttpRequest, title: str) -> dict[str, Any]:
        return {**self.admin_site.each_context(request), "title": title, "opts": self.opts}


def address(name: str) -> str:
    """The address of a policy's form."""
    return reverse("admin:monitor_policyvalues_change", args=[quote(name)])
