from __future__ import annotations

from django.core.validators import RegexValidator
from django.db import models

from scheduler.facts.scripts import GpuUse, TaskType

# A build without this column writes it into it.
NOTHING = models.Value([], models.JSONField())


class ScriptDefinition(models.Model):
    """A named program that users run with checked arguments: scheduler.facts.scripts.Script."""

    name = models.CharField(
        max_length=64,
        unique=True,
        validators=[RegexValidator(r"^[a-z][a-z0-9_]*$", "Use lower-case letters, digits and _.")],
    )
    description = models.TextField(blank=True)
    argv = models.JSONField(
        "command of a job",
        default=list,
        blank=True,
        help_text='List of words, such as ["python3", "embed.py", "{input}", ["-m", "{model}"]].'
        " An inner list is left out when one of its arguments is not given. No shell is used.",
    )
    worker = models.JSONField(
        "command of a worker",
        default=list,
        db_default=NOTHING,
        blank=True,
        help_text='List of words, such as ["{python}", "{programs}/serve.py", "module:Class"]. It'
        " loads once and answers the items of a batch. Empty: each item of a batch is a job.",
    )
    schema = models.JSONField(
        "JSON Schema of the arguments",
        default=dict,
        blank=True,
        help_text="An object with properties; a form is generated from it.",
    )
    gpu = models.CharField(
        "GPU",
        max_length=8,
        choices=[(g.value, g.value) for g in GpuUse],
        default=GpuUse.YES.value,
    )
    task_type = models.CharField(
        max_length=12,
        choices=[(t.value, t.value) for t in TaskType],
        default=TaskType.PROCESS.value,
    )
    item_argument = models.CharField(
        max_length=64, blank=True, help_text="The argument that gets the item of a batch."
    )
    gpu_memory_bytes = models.BigIntegerField("GPU memory (bytes)", null=True, blank=True)
    usual_s = models.PositiveIntegerField("usual duration (s)", null=True, blank=True)
    time_limit_s = models.PositiveIntegerField("time limit (s)", null=True, blank=True)
    enabled = models.BooleanField(default=True)

    class Meta:
        verbose_name = "script"

    def __str__(self) -> str:
        return self.name
