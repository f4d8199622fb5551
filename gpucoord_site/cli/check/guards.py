"""`gpucoord check`: guards that keep jobs from starting now, or soon will."""

from __future__ import annotations

from collections.abc import Iterator

from django.apps import apps

from gpucoord_site.cli.check.machine import existing
from gpucoord_site.cli.check.report import Finding, ok, warn
from gpucoord_site.config.settings import Config
from monitor.runtime.probes import disk_space
from monitor.thresholds import policy as policies
from monitor.thresholds.policy import FILE, Layer
from scheduler.catalogue.policy import PROFILES
from scheduler.disk.facts import DiskLevel, DiskSpace
from scheduler.disk.policy import DiskPolicy, is_near, level, sentence

REMEDY = "delete files there, or change the thresholds of the policy disk on /rules/"


def disks(config: Config) -> Iterator[Finding]:
    """Whether jobs wait for space of the data folder or of the folder of checkpoints."""
    policy = _policy(config)
    warnings = list(problems(config, policy))
    if not warnings:
        yield ok("disk guard", f"no job waits for disk space (block_pct = {policy.block_pct:g})")
    for text in warnings:
        yield warn("disk guard", text, REMEDY)


def problems(config: Config, policy: DiskPolicy) -> Iterator[str]:
    """A sentence for each file system for whose space jobs wait, or soon will."""
    seen = set()
    for folder in (config.data, config.checkpoints):
        if folder is None:
            continue
        place = existing(folder)
        if (device := place.stat().st_dev) in seen:
            continue
        seen.add(device)
        reading = disk_space.read(place)
        space = DiskSpace(
            device=str(device),
            used_bytes=reading.used_bytes,
            available_bytes=reading.available_bytes,
        )
        stage = level(space, policy, DiskLevel.NORMAL)
        if stage is DiskLevel.BLOCKED:
            yield sentence(str(folder), space, stage, policy)
        elif is_near(space, policy):
            text = sentence(str(folder), space, DiskLevel.NORMAL, policy)
            yield f"{text} Jobs with a folder there will soon wait."


def _policy(config: Config) -> DiskPolicy:
    """The thresholds in force; without tables, those of the settings."""
    # Made at the first start, with the tables.
    if apps.ready and (config.data / "secret_key").exists():
        from django.db import DatabaseError

        from monitor.thresholds import rows as thresholds

        try:
            return thresholds.current(DiskPolicy)
        except DatabaseError:
            pass
    layers = [policies.profile_layer(config.profile, [PROFILES]), Layer(FILE, config.policy)]
    made: DiskPolicy = policies.in_force(DiskPolicy, "disk", layers)
    return made
