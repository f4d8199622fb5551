"""Addresses of the jobs' pages."""

from __future__ import annotations

from django.urls import path

from monitor.runtime.pages import extension_page
from scheduler.execution.hosts import pages as host_pages
from scheduler.jobs.notifications import pages as notification_views
from scheduler.jobs.pages import search, sooner
from scheduler.jobs.pages import views as job_views
from scheduler.jobs.pages import without_incident as without_incident_page
from scheduler.jobs.timeline import pages as timeline_pages
from scheduler.language_models.model_services import pages as model_pages
from scheduler.language_models.prompts import pages as prompt_pages
from scheduler.limits.quotas import pages as quota_pages
from scheduler.limits.throttle import pages as throttle_pages
from scheduler.limits.time_windows.pages import views as time_window_views
from scheduler.submission.batches import pages as batch_views
from scheduler.submission.idle_work import pages as idle_work_pages
from scheduler.submission.scripts import pages as script_views

urlpatterns = [
    path("account/notifications/", notification_views.own, name="notifications"),
    path("internal/log/<str:ticket>/", host_pages.signed_log, name="signed-log"),
    extension_page("disks/", "scheduler.disk.pages:disks", "disks"),
    extension_page("disks/clean/", "scheduler.disk.pages:clean", "disks-clean"),
    extension_page("disks/clean/<int:pk>/", "scheduler.disk.pages:run", "disk-run"),
    path("batches/", batch_views.batches, name="batches"),
    path("batches/<int:pk>/", batch_views.batch, name="batch"),
    path("batches/<int:pk>/cancel/", batch_views.cancel, name="batch-cancel"),
    path("batches/<int:pk>/share/", batch_views.share, name="batch-share"),
    path("batches/<int:pk>/approve/", batch_views.approve, name="batch-approve"),
    path("batches/<int:pk>/retry/", batch_views.retry, name="batch-retry"),
    path("idle-work/", idle_work_pages.idle_work, name="idle-work"),
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
    path("jobs/<int:pk>/advice/", sooner.follow, name="job-follow"),
    path("jobs/<int:pk>/request/", sooner.request_more, name="job-request"),
    path("models/", model_pages.models, name="models"),
    # Not below models/, where it could be the name of a model.
    path("add-model/", model_pages.add, name="model-add"),
    # Names of models may have "/", so these come before the page of a model itself.
    path("models/<path:name>/prompt/", prompt_pages.send, name="model-prompt"),
    path("models/<path:name>/boot/", model_pages.boot, name="model-boot"),
    path("models/<path:name>/unload/", model_pages.unload, name="model-unload"),
    path("models/<path:name>/", model_pages.model, name="model"),
    path("prompts/<int:number>/answer/", prompt_pages.answer, name="prompt-answer"),
    path("mode/", throttle_pages.mode, name="mode"),
    path("shares/", quota_pages.shares, name="shares"),
    path("search/", search.search, name="search"),
    path("timeline/", timeline_pages.timeline, name="timeline"),
    path("scripts/", script_views.scripts, name="scripts"),
    path("folders/", script_views.folders, name="folders"),
    path("scripts/<str:name>/", script_views.script, name="script"),
    path("windows/", time_window_views.all_windows, name="windows"),
    path("windows/ask/", time_window_views.ask, name="window-ask"),
    path("windows/<int:pk>/decide/", time_window_views.decide, name="window-decide"),
    path("windows/<int:pk>/withdraw/", time_window_views.withdraw, name="window-withdraw"),
]
