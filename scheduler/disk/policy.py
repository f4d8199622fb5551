"""Policy: when the file system of a watched folder is low on space, and which jobs then wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monitor.facts.formats import GIB
from monitor.facts.hosts import FileSystemSpace
from monitor.facts.thresholds import percent, threshold
from scheduler.disk.facts import DiskLevel, DiskSpace, FolderUse, FullDisk
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.units import size

# Jobs will soon wait where less is left than this multiple of the free space that they need.
NEAR = 2
# With less left, no job starts that has only its log there.
LOGS_NEED_BYTES = 2 * GIB
# %: a level ends when the use is this much below its threshold.
CALM_PCT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPolicy:
    """Space of the watched file systems, in percent used as `df` counts it. 100 = never."""

    # fmt: off
    warn_pct: float = percent(60.0, "Low disk space above", "An event is recorded.")
    clean_pct: float = percent(65.0, "Clean up above",
        "A clean-up is due. It starts by itself if automatic clean-up is on.")
    block_pct: float = percent(70.0, "No job starts above",
        "Jobs wait whose working or checkpoint folder is on this file system, if less than the "
        "free space below is left too.")
    block_free_gib: float = threshold(50.0, "and with less free than", unit="GiB", ge=0,
        le=1_000_000, help="Or less than the part below, whichever is smaller.")
    block_free_pct: float = percent(5.0, "and with less free than this part",
        "Of the file system. 100 here and 1000000 GiB above leave the percentage alone.")
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


def floor_bytes(usable_bytes: int, policy: DiskPolicy) -> int:
    """Free space from which on jobs start, however full the file system is in percent."""
    part = usable_bytes * policy.block_free_pct / 100
    return round(min(policy.block_free_gib * GIB, part))


def is_near(space: FileSystemSpace, policy: DiskPolicy) -> bool:
    """Whether jobs wait, or soon will, for room on this file system."""
    used = space.used_pct
    if used is None or not policy.block_pct < min(used, 100):
        return False
    return space.available_bytes < NEAR * floor_bytes(space.usable_bytes, policy)


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
        calm_pct = CALM_PCT if _rank(before) >= _rank(stage) else 0.0
        if not (limit < 100 and used > limit - calm_pct):
            continue
        if stage is not DiskLevel.BLOCKED or _is_short(space, policy, calm_pct):
            return stage
    return DiskLevel.NORMAL


def _is_short(space: DiskSpace | None, policy: DiskPolicy, calm_pct: float) -> bool:
    if space is None:
        return False
    calm = space.usable_bytes * calm_pct / 100
    return space.available_bytes < floor_bytes(space.usable_bytes, policy) + calm


_ORDER = (DiskLevel.NORMAL, DiskLevel.WARNING, DiskLevel.CLEANING, DiskLevel.BLOCKED)


def _rank(stage: DiskLevel) -> int:
    return _ORDER.index(stage) if stage in _ORDER else 0


def sentence(path: str, space: DiskSpace, stage: DiskLevel, policy: DiskPolicy) -> str:
    """Sentence about a file system, with its figures."""
    used = space.used_pct or 0.0
    text = f"{path} is {used:.0f} % full; {size(space.available_bytes)} are left."
    if stage is DiskLevel.BLOCKED:
        floor = size(floor_bytes(space.usable_bytes, policy))
        return (
            f"{text} No job with its working or checkpoint folder there starts above"
            f" {policy.block_pct:g} % with less than {floor} left."
        )
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
        if device is None or device not in full or device in blockers:
            continue
        # Logs are small beside what jobs write.
        if use is not FolderUse.LOG or full[device].available_bytes < LOGS_NEED_BYTES:
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
            limit_bytes=disk.limit_bytes,
            available_bytes=disk.available_bytes,
        ),
    )
