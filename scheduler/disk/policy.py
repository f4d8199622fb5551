"""Policy: when the file system of a watched folder is low on space, and which jobs then wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monitor.facts.thresholds import percent, threshold
from scheduler.disk.facts import DiskLevel, DiskSpace, FolderUse, FullDisk
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPolicy:
    """Space of the watched file systems, in percent used as `df` counts it. 100 = never."""

    # fmt: off
    warn_pct: float = percent(60.0, "Low disk space above", "An event is recorded.")
    clean_pct: float = percent(65.0, "Clean up above",
        "A clean-up is due. It starts by itself if automatic clean-up is on.")
    block_pct: float = percent(70.0, "No job starts above",
        "Jobs wait whose working, log or checkpoint folder is on this file system.")
    calm_pct: float = percent(1.0, "Hysteresis",
        "A level ends when the use is this much below its threshold.")
    paths: tuple[str, ...] = threshold((), "Watched folders",
        "Absolute paths besides the data folder and the folder of checkpoints.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        problems = {}
        if self.clean_pct < self.warn_pct:
            problems["clean_pct"] = "it must not be below the warning"
        if self.block_pct < self.clean_pct:
            problems["block_pct"] = "it must not be below the clean-up"
        if any(not path.startswith("/") for path in self.paths):
            problems["paths"] = "each must be an absolute path"
        return problems


def level(space: DiskSpace | None, policy: DiskPolicy, before: DiskLevel) -> DiskLevel:
    """The level of a file system; one that cannot be read (None) keeps its level."""
    used = None if space is None else space.used_pct
    if used is None:
        return before
    limits = (
        (DiskLevel.BLOCKED, policy.block_pct),
        (DiskLevel.CLEANING, policy.clean_pct),
        (DiskLevel.WARNING, policy.warn_pct),
    )
    for stage, limit in limits:
        holds = _rank(before) >= _rank(stage)
        if limit < 100 and used > limit - (policy.calm_pct if holds else 0):
            return stage
    return DiskLevel.NORMAL


_ORDER = (DiskLevel.NORMAL, DiskLevel.WARNING, DiskLevel.CLEANING, DiskLevel.BLOCKED)


def _rank(stage: DiskLevel) -> int:
    return _ORDER.index(stage) if stage in _ORDER else 0


def sentence(path: str, space: DiskSpace, stage: DiskLevel, policy: DiskPolicy) -> str:
    """Sentence about a file system, with its figures."""
    used = space.used_pct or 0.0
    text = f"{path} is {used:.0f} % full; {size(space.available_bytes)} are left."
    if stage is DiskLevel.BLOCKED:
        return f"{text} No job with a folder there starts above {policy.block_pct:g} %."
    if stage is DiskLevel.CLEANING:
        return f"{text} A clean-up is due above {policy.clean_pct:g} %."
    return text


def full_blockers(
    folders: Iterable[tuple[FolderUse, str | None]], full: Mapping[str, FullDisk]
) -> tuple[Blocker, ...]:
    """Why a job waits. folders: each with its device; None = unknown, which blocks nothing.

    full: the full file systems by device. Each is named once, for the first of the folders.
    """
    blockers: dict[str, Blocker] = {}
    for use, device in folders:
        if device is not None and device in full and device not in blockers:
            blockers[device] = _blocker(use, full[device])
    return tuple(blockers.values())


def _blocker(use: FolderUse, disk: FullDisk) -> Blocker:
    return Blocker(
        code=BlockerCode.DISK_FULL,
        tier=Tier.MACHINE,
        holder=disk.path,
        requested=use.value,
        details=details(
            path=disk.path,
            used_pct=round(disk.used_pct, 1),
            limit_pct=disk.limit_pct,
            available_bytes=disk.available_bytes,
        ),
    )
