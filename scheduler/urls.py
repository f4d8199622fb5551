"""Addresses of the jobs' pages."""

from __future__ import annotations

from django.urls import path

from scheduler.pages import mode_views, share_views, views, window_views

urlpatterns = [
    path("jobs/", views.jobs, name="jobs"),
    path("jobs/new/", views.new, name="job-new"),
    path("jobs/<int:pk>/", views.job, name="job"),
    path("jobs/<int:pk>/cancel/", views.cancel, name="job-cancel"),
    path("jobs/<int:pk>/hold/", views.hold, name="job-hold"),
    path("jobs/<int:pk>/release/", views.release, name="job-release"),
    path("mode/", mode_views.mode, name="mode"),
    path("shares/", share_views.shares, name="shares"),
    path("windows/", window_views.all_windows, name="windows"),
    path("windows/ask/", window_views.ask, name="window-ask"),
    path("windows/<int:pk>/decide/", window_views.decide, name="window-decide"),
    path("windows/<int:pk>/withdraw/", window_views.withdraw, name="window-withdraw"),
]
