"""Addresses of the monitor's pages."""

from __future__ import annotations

from django.urls import path

from monitor import views

urlpatterns = [
    path("", views.dashboard, name="dashboard"),
    path("gpus/<str:uuid>/", views.gpu, name="gpu"),
    path("processes/", views.processes, name="processes"),
]
