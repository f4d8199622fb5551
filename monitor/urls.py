"""Addresses of the monitor's pages."""

from __future__ import annotations

from django.urls import path

from monitor import health_views, views

urlpatterns = [
    path("", views.dashboard, name="dashboard"),
    path("gpus/<str:uuid>/", views.gpu, name="gpu"),
    path("status/", health_views.status, name="status"),
    path("healthz", health_views.healthz, name="healthz"),
    path("processes/", views.processes, name="processes"),
]
