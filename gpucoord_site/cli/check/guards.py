"""`gpucoord check`: thresholds without effect, and guards that keep jobs from starting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from django.apps import apps

from gpucoord_site.cli.check.machine import existing
from gpucoord_site.cli.check.report import Finding, ok, warn
from gpucoord_site.config.settings import Config
from monitor.facts import thresholds as former
from monitor.runtime.probes import disk_space
from monitor.thresholds import policy as policies
from monitor.thresholds.policy import FILE, Layer
from scheduler.catalogue import PROFILES
from scheduler.disk.policy import DiskLevel, DiskPolicy, DiskSpace, is_near, level, sentence

T = TypeVar("T")
REMEDY = "delete files there, or change the thresholds of the policy disk on /rules/"


def disks(config: Config) -> Iterator[Finding]:
    """Whether jobs wait for space of the data folder or of the folder of checkpoints."""
    policy = _policy(config)
    warnings = list(problems(config, policy))
    if not warnings:
        yield ok("disk guard", f"no job waits for disk space (block_pct = {policy.block_pct:g})")
    for text in warnings:
        yield warn("disk guard", text, REMEDY)


def retired_thresholds(config: Config) -> Iterator[Finding]:
    """Values of former thresholds in the settings or the database."""
    in_settings = former.retired(config.policy)
    sentences: list[str] | None = _from_rows(config, lambda rows: rows.retired_values())
    if sentences is None:
        sentences = [former.sentence(in_settings, former.IN_SETTINGS)] if in_settings else []
    for text in sentences:
        yield warn(
            "thresholds",
            text,
            "remove it there; in the admin, save its policy under Thresholds or delete its values",
        )


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
    stored: DiskPolicy | None = _from_rows(config, lambda rows: rows.current(DiskPolicy))
    if stored is not None:
        return stored
    layers = [policies.profile_layer(config.profile, [PROFILES]), Layer(FILE, config.policy)]
    made: DiskPolicy = policies.in_force(DiskPolicy, "disk", layers)
    return made


def _from_rows(config: Config, read: Callable[[Any], T]) -> T | None:
    """The result of `read`, which gets the module of thresholds in force; None without tables."""
    # Made at the first start, with the tables.
    if not apps.ready or not (config.data / "secret_key").exists():
        return None
    from django.db import DatabaseError

    from monitor.thresholds import rows

    try:
        return read(rows)
    except DatabaseError:
        return None
