from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models

from scheduler.facts.scripts import Approval, BatchState, ExclusiveStep, GpuUse, ItemState, TaskType
from scheduler.models.jobs import EMPTY

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


OPEN_STATES = (BatchState.RUNNING.value,)


class Batch(models.Model):
    """One command or script for many items. Each item becomes a job when GPUs free up, or goes to a
    worker: a job that answers one item after another.

    request: the fields of each item's job, as they were submitted. work_s: run time of ended items.
    work: what workers get with each item, {"args", "time_limit_s", "retries"}, and how long one is
    expected to take, "estimate_s"; null = its items become jobs. workers: the states of the jobs of
    its workers that have not ended, by their numbers. failed_boots: workers in a row that failed
    before they had taken an item.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="batches")
    name = models.CharField(max_length=120)
    script = models.CharField(max_length=64, blank=True)
    # Variables in it may be secrets; it is emptied when no item can run any more.
    request = models.JSONField(default=dict, blank=True)
    gpu_mode = models.CharField("GPU mode", max_length=12, default="shared")
    state = models.CharField(
        max_length=12,
        choices=[(s.value, s.value) for s in BatchState],
        default=BatchState.RUNNING.value,
    )
    total_items = models.PositiveIntegerField()
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    work_s = models.FloatField(default=0.0)
    work = models.JSONField(null=True, blank=True)
    workers = models.JSONField(default=dict, db_default=EMPTY, blank=True)
    failed_boots = models.PositiveSmallIntegerField(default=0, db_default=0)
    created_at = models.DateTimeField()
    # When the first of its items began.
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    cancelled_by = models.CharField(max_length=150, blank=True)

    class Meta:
        verbose_name_plural = "batches"
        indexes = [
            models.Index(
                fields=["id"], name="batch_open", condition=models.Q(state__in=OPEN_STATES)
            ),
        ]

    def __str__(self) -> str:
        return f"batch {self.pk} {self.name}"


class ExclusiveRun(models.Model):
    """The exclusive mode of a batch on one host: its step, its GPUs, and the models that left them.

    chosen: UUIDs of the GPUs that it may take; [] = all. gpu_uuids: those that it has. reloads: the
    models to load again, {"service": id, "gpus": [uuid]}, in their order. boot: the instance that
    is being loaded. log: [step, time] of each step that began. waits_for: in words.
    approval: why it may take GPUs.
    """

    batch = models.OneToOneField(
        Batch, models.CASCADE, primary_key=True, related_name="exclusive_run"
    )
    host = models.CharField(max_length=100, blank=True)
    step = models.CharField(
        max_length=12,
        choices=[(s.value, s.value) for s in ExclusiveStep],
        default=ExclusiveStep.WAITING.value,
    )
    since = models.DateTimeField()
    chosen = models.JSONField("GPUs that it may take", default=list, blank=True)
    gpu_uuids = models.JSONField("GPUs that it has", default=list, blank=True)
    reloads = models.JSONField("models to load again", default=list, blank=True)
    boot = models.PositiveBigIntegerField("instance that loads", null=True, blank=True)
    log = models.JSONField("steps so far", default=list, blank=True)
    waits_for = models.TextField(blank=True)
    waits_for_batch = models.PositiveBigIntegerField(null=True, blank=True)
    stopped_by = models.CharField(max_length=150, blank=True)
    approval = models.CharField(
        max_length=10,
        choices=[(a.value, a.value) for a in Approval],
        default=Approval.NONE.value,
        db_default=Approval.NONE.value,
    )
    approved_by = models.CharField(max_length=150, blank=True, default="", db_default="")

    class Meta:
        indexes = [
            models.Index(
                fields=["batch"],
                name="exclusive_run_open",
                condition=~models.Q(step=ExclusiveStep.ENDED.value),
            ),
        ]

    def __str__(self) -> str:
        return f"exclusive mode of batch {self.batch_id}"


class BatchItem(models.Model):
    """An item of a batch. job: the newest job that runs it; attempt: how many there have been.

    host: whose workers have it at hand. failures: of tries by workers.
    """

    batch = models.ForeignKey("scheduler.Batch", models.CASCADE, related_name="items")
    index = models.PositiveIntegerField()
    input = models.TextField()
    status = models.CharField(
        max_length=12,
        choices=[(s.value, s.value) for s in ItemState],
        default=ItemState.QUEUED.value,
    )
    attempt = models.PositiveSmallIntegerField(default=0)
    failures = models.PositiveSmallIntegerField(default=0, db_default=0)
    host = models.CharField(max_length=100, blank=True, default="", db_default="")
    job = models.ForeignKey(
        "scheduler.Job", models.SET_NULL, related_name="batch_items", null=True, blank=True
    )
    gpu_uuid = models.CharField("GPU", max_length=96, blank=True)
    result = models.JSONField(null=True, blank=True)
    error = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["batch", "index"], name="batch_item_index"),
        ]
        indexes = [models.Index(fields=["batch", "status", "index"], name="batch_item_status")]

    def __str__(self) -> str:
        return f"item {self.index} of batch {self.batch_id}"


# Background work


class IdleTemplate(models.Model):
    """Background work for idle GPUs: scheduler.facts.scripts.TemplateFact.

    request: the fields of each job, as in POST /api/jobs/, with a command or a script.
    signals: {name: {"value": number, "at": time}}.
    """

    name = models.CharField(
        max_length=64,
        unique=True,
        validators=[RegexValidator(r"^[a-z][a-z0-9_-]*$", "Use lower-case letters, digits, _, -.")],
    )
    enabled = models.BooleanField(default=True)
    account = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.PROTECT,
        related_name="idle_templates",
        help_text="The user who owns and is charged for the jobs.",
    )
    request = models.JSONField(
        "fields of the job",
        help_text='Such as {"script": "embed_768", "script_args": {"input": "/data"}, "gpus": 1}.',
    )
    weight = models.FloatField(
        default=1.0, validators=[MinValueValidator(0), MaxValueValidator(1_000_000)]
    )
    most_running = models.PositiveSmallIntegerField("jobs at a time", default=1)
    most_per_gpu = models.PositiveSmallIntegerField("jobs on a GPU at a time", default=1)
    most_per_day = models.PositiveIntegerField("jobs a day", null=True, blank=True)
    signals = models.JSONField(default=dict, blank=True)
    problem = models.TextField(blank=True)
    created_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class IdleChoice(models.Model):
    """Why an idle GPU got a job of a template. candidates: of scheduler.facts.scripts."""

    at = models.DateTimeField(db_index=True)
    host = models.CharField(max_length=100)
    gpu_uuid = models.CharField("GPU", max_length=96, blank=True)
    idle_s = models.FloatField("idle seconds")
    template = models.CharField(max_length=64)
    # The number of the job, also after its record has been removed.
    job = models.PositiveBigIntegerField()
    seed = models.PositiveBigIntegerField()
    candidates = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"{self.template} for {self.gpu_uuid or self.host}"
