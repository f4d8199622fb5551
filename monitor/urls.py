"""Addresses of the monitor's pages."""

from __future__ import annotations

from django.urls import path

from monitor.gpus import pages as gpu_pages
from monitor.incidents import pages as incident_views
from monitor.journal import pages as journal_views
from monitor.pages import views as live_pages
from monitor.runtime import pages as health
from monitor.thresholds.pages import rules
from monitor.usage.pages import views as history_views

urlpatterns = [
    path("", live_pages.dashboard, name="dashboard"),
    path("gpus/<str:uuid>/", live_pages.gpu, name="gpu"),
    path("gpus/<str:uuid>/card/", live_pages.gpu_card, name="gpu-card"),
    path("gpus/<str:uuid>/pause/", gpu_pages.pause, name="gpu-pause"),
    path("gpus/<str:uuid>/resume/", gpu_pages.resume, name="gpu-resume"),
    path("gpus/<str:uuid>/release/", gpu_pages.release, name="gpu-release"),
    path("rules/", rules, name="rules"),
    path("status/", health.status, name="status"),
    path("healthz", health.healthz, name="healthz"),
    path("events/", journal_views.events_page, name="events"),
    path("incidents/", incident_views.incidents, name="incidents"),
    path("incidents/<int:pk>/", incident_views.incident, name="incident"),
    path("incidents/<int:pk>/acknowledge/", incident_views.acknowledge, name="incident-ack"),
    path("incidents/<int:pk>/snooze/", incident_views.snooze, name="incident-snooze"),
    path("incidents/<int:pk>/write/", incident_views.write, name="incident-write"),
    path("incidents/<int:pk>/end/", incident_views.end, name="incident-end"),
    path("incidents/<int:pk>/exempt/", incident_views.exempt, name="incident-exempt"),
    path("incidents/<int:pk>/close/", incident_views.close, name="incident-close"),
    path("exemptions/<int:pk>/end/", incident_views.end_exemption, name="exemption-end"),
    path("me/", history_views.me, name="me"),
    path("processes/", live_pages.processes, name="processes"),
    path("processes/<int:pk>/", history_views.process, name="process"),
    # A name may hold anything, even a slash.
    path("users/<path:name>/", history_views.person, name="person"),
    path("hosts/", gpu_pages.hosts, name="hosts"),
    path("hosts/<path:name>/", history_views.host, name="host"),
]
