from __future__ import annotations

from django.conf import settings
from django.db import models

from monitor.facts.accounts import ALL_SCOPES, scopes_text


class OsAccount(models.Model):
    """The OS account of a user: their jobs run as it, and its processes are theirs."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="os_account")
    name = models.CharField(
        "account", max_length=150, unique=True, help_text="Its name on the GPU servers."
    )
    created_at = models.DateTimeField()
    origin = models.CharField(
        max_length=80, blank=True, help_text="The reason for this entry, such as an SSH login."
    )

    class Meta:
        verbose_name = "OS account"

    def __str__(self) -> str:
        return f"{self.name} of {self.user}"


class Agent(models.Model):
    """A program that submits jobs for a user, within limits of its own.

    gpu_minutes: a day. stopped_at: its requests are refused since then.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="agents")
    name = models.CharField(max_length=40)
    running_jobs = models.PositiveSmallIntegerField("running jobs at a time", default=2)
    gpu_minutes = models.PositiveIntegerField("GPU-minutes a day", default=240)
    created_at = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="agent_name_once")]

    def __str__(self) -> str:
        return f"{self.name} of {self.user}"


class ApiToken(models.Model):
    """A token of the REST API. Only its SHA-256 is stored; `prefix` identifies it on pages.

    `host`: the token is valid on this host only; empty: on all. Tokens of SSH logins have one.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80, blank=True)
    prefix = models.CharField(max_length=12)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    # Names of TokenScope, separated by spaces.
    scopes = models.CharField(max_length=40, default=scopes_text(ALL_SCOPES))
    host = models.CharField(max_length=100, blank=True, default="")
    # The agent that uses it; its limits hold.
    agent = models.ForeignKey(Agent, models.CASCADE, null=True, blank=True, related_name="tokens")

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.prefix}… of {self.user}"


class LoginLink(models.Model):
    """A link that logs a browser in once. Only its SHA-256 is stored."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"login link of {self.user}"


class PolicyValues(models.Model):
    """The thresholds of one policy that operators changed; all others have their defaults.

    hosts: values for single hosts, which override those for all, by the name of the host.
    """

    name = models.CharField(max_length=60, primary_key=True)
    values = models.JSONField(default=dict, blank=True)
    hosts = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )

    class Meta:
        verbose_name = "threshold group"
        verbose_name_plural = "thresholds"

    def __str__(self) -> str:
        return self.name
