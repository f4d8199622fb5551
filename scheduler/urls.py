"""Addresses of the jobs' pages."""

from __future__ import annotations

from django.urls import path

from scheduler import views

urlpatterns = [
    path("jobs/", views.jobs, name="jobs"),
    path("jobs/new/", views.new, name="job-new"),
    path("jobs/<int:pk>/", views.job, name="job"),
    path("jobs/<int:pk>/cancel/", views.cancel, name="job-cancel"),
]
