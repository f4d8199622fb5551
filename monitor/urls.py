"""Addresses of the monitor's pages."""

from __future__ import annotations

from django.urls import path

from monitor.pages import (
    event_views,
    gpu_views,
    health_views,
    history_views,
    incident_views,
    rules_views,
    views,
)

urlpatterns = [
    path("", views.dashboard, name="dashboard"),
    path("gpus/<str:uuid>/", views.gpu, name="gpu"),
    path("gpus/<str:uuid>/pause/", gpu_views.pause, name="gpu-pause"),
    path("gpus/<str:uuid>/resume/", gpu_views.resume, name="gpu-resume"),
    path("gpus/<str:uuid>/release/", gpu_views.release, name="gpu-release"),
    path("rules/", rules_views.rules, name="rules"),
    path("status/", health_views.status, name="status"),
    path("healthz", health_views.healthz, name="healthz"),
    path("events/", event_views.events, name="events"),
    path("incidents/", incident_views.incidents, name="incidents"),
    path("incidents/<int:pk>/", incident_views.incident, name="incident"),
    path("incidents/<int:pk>/acknowledge/", incident_views.acknowledge, name="incident-ack"),
    path("incidents/<int:pk>/snooze/", incident_views.snooze, name="incident-snooze"),
    path("incidents/<int:pk>/exempt/", incident_views.exempt, name="incident-exempt"),
    path("incidents/<int:pk>/close/", incident_views.close, name="incident-close"),
    path("exemptions/<int:pk>/end/", incident_views.end_exemption, name="exemption-end"),
    path("me/", history_views.me, name="me"),
    path("processes/", views.processes, name="processes"),
    path("processes/<int:pk>/", history_views.process, name="process"),
    # A name may hold anything, even a slash.
    path("users/<path:name>/", history_views.person, name="person"),
    path("hosts/<path:name>/", history_views.host, name="host"),
]
