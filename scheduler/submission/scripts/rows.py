"""Rows of the script registry."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from monitor.facts.formats import fact_from
from scheduler.facts.scripts import GpuUse, Script, TaskType
from scheduler.models import ScriptDefinition
from scheduler.submission.scripts.policy import definition_mistakes

MOST_SCRIPTS = 500


def fact(row: ScriptDefinition) -> Script:
    return fact_from(
        Script,
        row,
        argv=tuple(row.argv) if isinstance(row.argv, list) else (),
        worker=tuple(row.worker) if isinstance(row.worker, list) else (),
        gpu=GpuUse(row.gpu),
        task_type=TaskType(row.task_type),
        memory_bytes=row.gpu_memory_bytes,
    )


def enabled() -> list[Script]:
    """All scripts that may be run, by name."""
    rows = ScriptDefinition.objects.filter(enabled=True).order_by("name")
    return [fact(row) for row in rows[:MOST_SCRIPTS]]


def named(name: str) -> Script:
    """Raises ValueError with a sentence."""
    row = ScriptDefinition.objects.filter(name=name[:64], enabled=True).first()
    if row is None:
        known = ", ".join(script.name for script in enabled()) or "none"
        raise ValueError(f"There is no script of this name; known scripts: {known[:400]}.")
    return fact(row)


def check(row: ScriptDefinition) -> None:
    """Raises ValidationError for a definition that can't be used."""
    if mistakes := definition_mistakes(fact(row)):
        raise ValidationError(dict(mistakes))
