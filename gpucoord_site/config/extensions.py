"""The extensions: parts that a site can switch off, with the modules that belong to each alone.

None of these modules is loaded while its extension is off. Its pages are then absent (404), its
steps leave the loops, and its tables stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_DISPATCH = "scheduler.dispatch.steps"
_ENGINES = "scheduler.execution.engines"
_BATCHES = "scheduler.submission.batches"
_IDLE_WORK = "scheduler.submission.idle_work"
_MODELS = "scheduler.language_models.model_services"
_PROMPTS = "scheduler.language_models.prompts"
ROOMS: Mapping[str, tuple[str, ...]] = {
    "models": (
        "gpucoord_site.service.model_endpoint",
        f"{_DISPATCH}.model_evictions",
        "scheduler.admin.model_services",
        "scheduler.language_models.model_proxy",
        f"{_MODELS}.api",
        f"{_MODELS}.pages",
        f"{_MODELS}.probes",
        f"{_MODELS}.rows",
        f"{_MODELS}.step",
        f"{_MODELS}.steps",
        f"{_PROMPTS}.api",
        f"{_PROMPTS}.metrics",
        f"{_PROMPTS}.rows",
        "scheduler.submission.task_records",
    ),
    "batches": (
        f"{_DISPATCH}.exclusive_batches",
        "scheduler.admin.idle_work",
        f"{_BATCHES}.actions",
        f"{_BATCHES}.api",
        f"{_BATCHES}.pages",
        f"{_BATCHES}.rows",
        f"{_BATCHES}.step",
        f"{_IDLE_WORK}.api",
        f"{_IDLE_WORK}.pages",
        f"{_IDLE_WORK}.step",
        "scheduler.submission.scripts.api",
        "scheduler.submission.scripts.pages",
    ),
    "terminals": ("scheduler.terminals.consumers", "scheduler.terminals.step"),
    "cleanup": ("scheduler.disk.actions", "scheduler.disk.api", "scheduler.disk.pages"),
    "slurm": (
        f"{_DISPATCH}.engine_answers",
        f"{_DISPATCH}.engine_leaders",
        f"{_DISPATCH}.engine_tasks",
        f"{_ENGINES}.policy",
        f"{_ENGINES}.slurm",
    ),
    "capacity": (
        "reports.capacity.api",
        "reports.capacity.pages",
        "reports.capacity.rows",
        "reports.capacity.step",
    ),
    "schedules": (
        "reports.schedule.api",
        "reports.schedule.pages",
        "reports.schedule.rows",
        "reports.schedule.step",
    ),
    "demo": ("gpucoord_site.demo",),
    "backup": ("gpucoord_site.backup",),
}
COMMANDS: Mapping[str, str] = {
    "backup": "backup",
    "demo": "demo",
    "move-database": "backup",
    "restore": "backup",
}


def rooms_off(on: Collection[str]) -> tuple[str, ...]:
    """The modules that are not loaded while only these extensions are on."""
    return tuple(room for name, rooms in ROOMS.items() if name not in on for room in rooms)


def known(names: list[str]) -> list[str]:
    """`none` is no extension. Raises ValueError for an unknown name."""
    if names == ["none"]:
        return []
    unknown = [name for name in names if name not in ROOMS]
    if unknown:
        raise ValueError(f"{unknown[0]} is no extension; they are {', '.join(ROOMS)}")
    return names
