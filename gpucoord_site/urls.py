"""Addresses of all pages; each app names its own."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import views as auth
from django.urls import include, path

from gpucoord_site import api, api_docs, metrics_views

urlpatterns = [
    path("", include("monitor.urls")),
    path("", include("scheduler.urls")),
    path("api/docs/", api_docs.docs, name="api-docs"),
    path("api/", api.urls),
    path("metrics", metrics_views.metrics, name="metrics"),
    path("login/", auth.LoginView.as_view(), name="login"),
    path("logout/", auth.LogoutView.as_view(), name="logout"),
    path("admin/", admin.site.urls),
]
