"""Addresses of the reports' pages."""

from __future__ import annotations

from django.urls import path

from monitor.runtime.pages import extension_page
from reports.render import pages as usage_pages
from reports.tags import pages as tag_pages

urlpatterns = [
    path("reports/", usage_pages.usage, name="reports"),
    extension_page("reports/capacity/", "reports.capacity.pages:capacity", "capacity"),
    path("reports/tags/", tag_pages.by_tag, name="tag-report"),
    extension_page("reports/stored/", "reports.schedule.pages:stored", "stored-reports"),
    extension_page("reports/schedules/<int:pk>/", "reports.schedule.pages:send", "send-report"),
    extension_page(
        "reports/schedules/<int:pk>/mail/", "reports.schedule.pages:preview", "preview-report"
    ),
    extension_page("reports/stored/<int:pk>/", "reports.schedule.pages:report", "stored-report"),
    extension_page(
        "reports/stored/<int:pk>/<slug:format>/", "reports.schedule.pages:file", "stored-file"
    ),
]
