"""Addresses of the reports' pages."""

from __future__ import annotations

from django.urls import path

from reports.capacity import pages as capacity_pages
from reports.render import pages as usage_pages
from reports.schedule import pages as stored_pages
from reports.tags import pages as tag_pages

urlpatterns = [
    path("reports/", usage_pages.usage, name="reports"),
    path("reports/capacity/", capacity_pages.capacity, name="capacity"),
    path("reports/tags/", tag_pages.by_tag, name="tag-report"),
    path("reports/stored/", stored_pages.stored, name="stored-reports"),
    path("reports/schedules/<int:pk>/", stored_pages.send, name="send-report"),
    path("reports/schedules/<int:pk>/mail/", stored_pages.preview, name="preview-report"),
    path("reports/stored/<int:pk>/", stored_pages.report, name="stored-report"),
    path("reports/stored/<int:pk>/<slug:format>/", stored_pages.file, name="stored-file"),
]
