"""Addresses of the jobs' pages."""

from __future__ import annotations

from django.urls import path

from monitor.runtime.pages import extension_page
from scheduler.execution import pages as host_pages
from scheduler.jobs.notifications import pages as notification_views
from scheduler.jobs.pages import table, views
from scheduler.jobs.pages import timeline as timeline_pages
from scheduler.jobs.pages import views as job_views
from scheduler.jobs.pages import views as without_incident_page
from scheduler.limits.quotas import pages as quota_pages
from scheduler.limits.throttle import pages as throttle_pages
from scheduler.limits.time_windows import pages as time_window_views

BATCHES = "scheduler.submission.batches.pages"
IDLE_WORK = "scheduler.submission.idle_work.pages"
MODELS = "scheduler.language_models.model_services.pages"
PROMPTS = "scheduler.language_models.model_services.pages"
SCRIPTS = "scheduler.submission.scripts.pages"

urlpatterns = [
    path("account/notifications/", notification_views.own, name="notifications"),
    path("internal/log/<str:ticket>/", host_pages.signed_log, name="signed-log"),
    extension_page("disks/", "scheduler.disk.pages:disks", "disks"),
    extension_page("disks/clean/", "scheduler.disk.pages:clean", "disks-clean"),
    extension_page("disks/clean/<int:pk>/", "scheduler.disk.pages:run", "disk-run"),
    extension_page("batches/", f"{BATCHES}:batches", "batches"),
    extension_page("batches/<int:pk>/", f"{BATCHES}:batch", "batch"),
    extension_page("batches/<int:pk>/cancel/", f"{BATCHES}:cancel", "batch-cancel"),
    extension_page("batches/<int:pk>/share/", f"{BATCHES}:share", "batch-share"),
    extension_page("batches/<int:pk>/approve/", f"{BATCHES}:approve", "batch-approve"),
    extension_page("batches/<int:pk>/retry/", f"{BATCHES}:retry", "batch-retry"),
    extension_page("idle-work/", f"{IDLE_WORK}:idle_work", "idle-work"),
    path(
        "incidents/<int:pk>/without/",
        without_incident_page.without_incident,
        name="incident-without",
    ),
    path("jobs/", job_views.jobs, name="jobs"),
    path("jobs/new/", job_views.new, name="job-new"),
    path("jobs/new/draft/", job_views.draft, name="job-draft"),
    path("jobs/new/presets/<int:pk>/remove/", job_views.remove_preset, name="job-preset-remove"),
    path("jobs/views/", job_views.save_view, name="jobs-view-save"),
    path("jobs/views/remove/", job_views.remove_view, name="jobs-view-remove"),
    path("jobs/bulk/", job_views.bulk, name="jobs-bulk"),
    path("jobs/<int:pk>/", job_views.job, name="job"),
    path("jobs/<int:pk>/cancel/", job_views.cancel, name="job-cancel"),
    path("jobs/<int:pk>/hold/", job_views.hold, name="job-hold"),
    path("jobs/<int:pk>/release/", job_views.release, name="job-release"),
    path("jobs/<int:pk>/advice/", views.follow, name="job-follow"),
    path("jobs/<int:pk>/request/", views.request_more, name="job-request"),
    extension_page("models/", f"{MODELS}:models", "models"),
    # Not below models/, where it could be the name of a model.
    extension_page("add-model/", f"{MODELS}:add", "model-add"),
    # Names of models may have "/", so these come before the page of a model itself.
    extension_page("models/<path:name>/prompt/", f"{PROMPTS}:send", "model-prompt"),
    extension_page("models/<path:name>/boot/", f"{MODELS}:boot", "model-boot"),
    extension_page("models/<path:name>/unload/", f"{MODELS}:unload", "model-unload"),
    extension_page("models/<path:name>/", f"{MODELS}:model", "model"),
    extension_page("prompts/<int:number>/answer/", f"{PROMPTS}:answer", "prompt-answer"),
    path("mode/", throttle_pages.mode, name="mode"),
    path("shares/", quota_pages.shares, name="shares"),
    path("search/", table.search, name="search"),
    path("timeline/", timeline_pages.timeline, name="timeline"),
    extension_page("scripts/", f"{SCRIPTS}:scripts", "scripts"),
    extension_page("folders/", f"{SCRIPTS}:folders", "folders"),
    extension_page("scripts/<str:name>/", f"{SCRIPTS}:script", "script"),
    path("windows/", time_window_views.all_windows, name="windows"),
    path("windows/ask/", time_window_views.ask, name="window-ask"),
    path("windows/<int:pk>/decide/", time_window_views.decide, name="window-decide"),
    path("windows/<int:pk>/withdraw/", time_window_views.withdraw, name="window-withdraw"),
]
