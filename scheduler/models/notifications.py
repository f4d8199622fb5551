from __future__ import annotations

from django.conf import settings
from django.db import models


class NotificationSettings(models.Model):
    """When a user is notified about own jobs.

    kinds: names of scheduler.facts.notices.NoticeKind, for all jobs; a job's own kinds are added.
    channel: a service of the user's own, beside mails. by_browser: open pages of the user show
    them too, in browsers that have the permission.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="+"
    )
    kinds = models.JSONField(default=list, blank=True)
    by_mail = models.BooleanField(default=True)
    by_browser = models.BooleanField(default=False)
    # Hold further jobs of a program after so many failures in a row, each so soon after its start.
    pause_on_quick_failure = models.BooleanField(db_default=False, default=False)
    quick_failures = models.PositiveSmallIntegerField(db_default=3, default=3)
    quick_failure_s = models.PositiveIntegerField(db_default=30, default=30)
    channel = models.OneToOneField(
        "monitor.Channel", models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        verbose_name = "notification settings"
        verbose_name_plural = "notification settings"

    def __str__(self) -> str:
        return f"notifications of {self.user}"


class BrowserNotice(models.Model):
    """A message for the open pages of a user. It is kept for a day; about: as of Message."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    about = models.CharField(max_length=60)
    title = models.CharField(max_length=200)
    text = models.TextField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "about"], name="browser_notice_once")
        ]

    def __str__(self) -> str:
        return self.title


class NotificationCursor(models.Model):
    """The last event that was looked at for notifications. There is one row.

    seen: numbers of the events shortly before it that were looked at; None: all of them.
    soon: waiting jobs whose owners know that they start soon.
    """

    seen_event = models.BigIntegerField(default=0)
    seen = models.JSONField(null=True, default=None)
    soon = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"up to event {self.seen_event}"
