from __future__ import annotations

from django.db import models

from monitor.facts.hosts import HostState


class Host(models.Model):
    """A machine that runs gpucoord on this database: monitor.facts.hosts.HostFact.

    silent_since_at: its silence was reported. A host is registered when its service starts.
    """

    name = models.CharField(primary_key=True, max_length=100)
    state = models.CharField(
        max_length=8,
        choices=[(s.value, s.value) for s in HostState],
        default=HostState.ACTIVE.value,
    )
    instance = models.CharField(max_length=40, blank=True)
    # Hosts with different secret keys could not read each other's logs and alert channels.
    key_mark = models.CharField("digest of its secret key", max_length=64, blank=True)
    boot_id = models.CharField(max_length=40, blank=True)
    version = models.CharField(max_length=40, blank=True)
    address = models.CharField(max_length=300, blank=True)
    # Where other hosts read its logs; a host without pages can have one too.
    log_address = models.CharField(max_length=300, blank=True)
    # Of its endpoint for language models, for the endpoints of other hosts.
    models_address = models.CharField(max_length=300, blank=True, default="", db_default="")
    profile = models.CharField(max_length=20, blank=True)
    reason = models.CharField(max_length=200, blank=True)
    changed_by = models.CharField(max_length=150, blank=True)
    changed_at = models.DateTimeField(null=True, blank=True)
    joined_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    silent_since_at = models.DateTimeField(null=True, blank=True)
    down_at = models.DateTimeField("confirmed down at", null=True, blank=True)
    down_by = models.CharField("confirmed down by", max_length=150, blank=True)

    def __str__(self) -> str:
        return self.name


class JoinToken(models.Model):
    """Lets one host register, once. Only its SHA-256 is stored."""

    digest = models.CharField(max_length=64, unique=True)
    made_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"join token of {self.made_by}"
