from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from scheduler.facts.jobs import PRIORITIES, DependencyKind, JobState, Outcome

# A build without these columns writes it into them.
EMPTY = models.Value({}, models.JSONField())


def conditional() -> models.Q:
    """Jobs that may wait for another reason than a free GPU (see `jobs/policy.py`)."""
    return (
        ~models.Q(held="")
        | models.Q(begin_at__isnull=False)
        | models.Q(retry_at__isnull=False)
        | models.Q(array_limit__isnull=False)
        | models.Q(depends=True)
    )


class Job(models.Model):
    """A command to run. argv is what runs; command is the text as it was submitted.

    A command text runs as ["/bin/sh", "-c", command].
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="jobs")
    # The model service that it runs an instance of.
    model_service = models.ForeignKey(
        "scheduler.ModelService", models.SET_NULL, null=True, blank=True, related_name="jobs"
    )
    name = models.CharField(max_length=120)
    command = models.TextField()
    argv = models.JSONField()
    # The registered script that argv comes from, its arguments and its type.
    script = models.CharField(max_length=64, blank=True)
    script_args = models.JSONField(default=dict, blank=True)
    task_type = models.CharField(max_length=12, blank=True)
    # {"output": …} as the job wrote it, or {"problem": …}. None = it wrote none.
    result = models.JSONField(null=True, blank=True)
    cwd = models.CharField(max_length=4096, blank=True)
    # Values may be secrets, so they are dropped when the job has ended for good.
    env = models.JSONField(default=dict, blank=True)
    env_names = models.JSONField(default=list, blank=True)
    tags = models.JSONField(default=dict, blank=True)
    priority = models.PositiveSmallIntegerField(
        default=3,
        choices=[(value, f"{value} {word}") for value, word in PRIORITIES.items()],
        validators=[MinValueValidator(1), MaxValueValidator(5)],
    )
    gpus = models.PositiveSmallIntegerField(default=1)
    gpu_memory_bytes = models.BigIntegerField(null=True, blank=True)
    # It comes from earlier runs of the same command, as the job declared none.
    gpu_memory_is_learned = models.BooleanField(default=False)
    exclusive = models.BooleanField(default=False)
    # Constraints on GPUs: scheduler.facts.jobs.Requirement describes them.
    capability = models.CharField("least compute capability", max_length=8, blank=True)
    gpu_model = models.CharField(max_length=100, blank=True)
    power = models.FloatField("least power rank", null=True, blank=True)
    gpu_uuid = models.CharField("this GPU alone", max_length=96, blank=True)
    share_pct = models.PositiveSmallIntegerField("most of a GPU's time", null=True, blank=True)
    # The only host that may run it; "" = any.
    host = models.CharField("this host alone", max_length=100, blank=True)
    # The host that has its checkpoint, where it runs again; "" = it has none.
    home = models.CharField("host of its checkpoint", max_length=100, blank=True)
    # An item of this batch in exclusive mode, or a model that is loaded again after it.
    exclusive_batch = models.PositiveBigIntegerField(null=True, blank=True)
    # It answers items of this batch.
    worker_batch = models.PositiveBigIntegerField(null=True, blank=True)
    # The template of idle work that it comes from: it is the first to leave its GPU.
    idle_template = models.CharField(max_length=64, blank=True, db_default="", default="")
    # The most that its processes take of the host, where it has cgroups.
    cpus = models.FloatField("most CPUs", null=True, blank=True)
    memory_bytes = models.BigIntegerField("most host memory", null=True, blank=True)
    # How it behaves when its GPU is wanted: YieldOptions in scheduler/facts/jobs.py.
    preemptible = models.BooleanField(default=False)
    requeue = models.BooleanField(default=False)
    yield_signal = models.CharField(max_length=12, blank=True)
    grace_s = models.PositiveIntegerField(null=True, blank=True)
    retries = models.PositiveSmallIntegerField(default=0)
    pause_on_quick_failure = models.BooleanField(
        "hold jobs like it after quick failures", db_default=False, default=False
    )
    # Notices to its owner, beside those for all jobs: names of scheduler.facts.jobs.NoticeKind.
    notify = models.JSONField(default=list, blank=True)
    begin_at = models.DateTimeField(null=True, blank=True)
    # The number of the array's first job.
    array = models.PositiveBigIntegerField(null=True, blank=True, db_index=True)
    array_index = models.PositiveIntegerField(null=True, blank=True)
    array_limit = models.PositiveIntegerField(null=True, blank=True)
    umask = models.PositiveSmallIntegerField(null=True, blank=True)
    # Soft limits of its processes: scheduler.facts.people.
    limits = models.JSONField(default=dict, db_default=EMPTY, blank=True)
    # "" = that of the account.
    primary_group = models.CharField(max_length=120, db_default="", default="", blank=True)
    # Parts of the submitting shell that it does not get, with the reason.
    left_out = models.JSONField(default=dict, db_default=EMPTY, blank=True)
    # The agent of its owner that submitted it.
    agent = models.ForeignKey(
        "monitor.Agent", models.SET_NULL, null=True, blank=True, related_name="jobs", db_index=False
    )
    # It runs in a terminal that `gpucoord shell` connects to.
    interactive = models.BooleanField(default=False)
    # Its GPUs are idle: when its terminal was warned, and the text.
    idle_warned_at = models.DateTimeField(null=True, blank=True)
    idle_warning = models.CharField(max_length=200, blank=True, default="")
    # It has an environment in JobInput, or the first job of its array has.
    has_environment = models.BooleanField(default=False)
    # It has a row in JobInput with data, or the first job of its array has.
    has_input = models.BooleanField(default=False)
    # Whether it has rows in JobDependency, which are read only then.
    depends = models.BooleanField(default=False)
    estimate_s = models.PositiveIntegerField(null=True, blank=True)
    time_limit_s = models.PositiveIntegerField(null=True, blank=True)

    state = models.CharField(
        max_length=12, choices=[(s.value, s.value) for s in JobState], default=JobState.QUEUED.value
    )
    outcome = models.CharField(
        max_length=12, choices=[(o.value, o.value.replace("_", " ")) for o in Outcome], blank=True
    )
    exit_code = models.IntegerField(null=True, blank=True)
    signal = models.PositiveSmallIntegerField(null=True, blank=True)
    problem = models.TextField(blank=True)
    blockers = models.JSONField(default=list, blank=True)
    blockers_at = models.DateTimeField(null=True, blank=True)
    # Its main blocker over time, "EPOCH_SECONDS CODE;" for each change, the newest of them.
    # scheduler.queue.planner.blockers reads it.
    blocker_log = models.TextField(blank=True, default="")
    # Why it is held until a user releases it; "" = it is not held.
    held = models.TextField(blank=True)
    held_by = models.CharField(max_length=150, blank=True)
    # Held after quick failures of jobs like it: the last of them, and the end of its log.
    held_after = models.PositiveBigIntegerField(null=True, blank=True)
    held_log = models.TextField(db_default="", default="", blank=True)
    # When it was released last: earlier losses no longer count.
    released_at = models.DateTimeField(null=True, blank=True)
    # After a failure that is tried again: not before this.
    retry_at = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveSmallIntegerField(default=0)
    requeues = models.PositiveSmallIntegerField("times it yielded", default=0)
    # It was preempted, and does not preempt other jobs before this time.
    may_preempt_at = models.DateTimeField(null=True, blank=True)
    submitted_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    # Predicted start: the first prediction (median, 90th percentile), and the latest.
    first_predicted_start_at = models.DateTimeField(null=True, blank=True)
    first_predicted_p90_at = models.DateTimeField(null=True, blank=True)
    predicted_start_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancelled_by = models.CharField(max_length=150, blank=True)

    class Meta:
        indexes = [
            # The planner's queue: waiting jobs, highest priority first, then oldest.
            models.Index(
                fields=["-priority", "submitted_at", "id"],
                name="job_queue",
                condition=models.Q(state="queued"),
            ),
            # Those of them that wait for more than a place.
            models.Index(
                fields=["id"],
                name="job_conditional",
                condition=models.Q(state="queued") & conditional(),
            ),
            # For queries of jobs that have not ended.
            models.Index(fields=["state"], name="job_open", condition=~models.Q(state="finished")),
            # Whether an array has ended.
            models.Index(
                fields=["array"],
                name="job_open_member",
                condition=~models.Q(state="finished") & models.Q(array__isnull=False),
            ),
            models.Index(fields=["owner", "-submitted_at"], name="job_owner_submitted"),
            # Jobs of agents, which have limits of their own.
            models.Index(
                fields=["agent", "state"],
                name="job_agent",
                condition=models.Q(agent__isnull=False),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(priority__gte=1, priority__lte=5), name="job_priority_1_to_5"
            ),
            models.CheckConstraint(
                condition=models.Q(state="finished", ended_at__isnull=False) & ~models.Q(outcome="")
                | ~models.Q(state="finished") & models.Q(outcome="", ended_at__isnull=True),
                name="job_outcome_when_finished",
            ),
        ]

    def __str__(self) -> str:
        return f"job {self.pk} {self.name}"


class JobInput(models.Model):
    """The standard input and captured environment of a job, or of all jobs of an array.

    They are kept until the last one has ended.
    """

    # Of an array, its first job.
    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="input")
    data = models.BinaryField()
    # Values may be secrets.
    environment = models.JSONField(default=dict, blank=True)
    size = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"standard input of job {self.job_id}"


class JobDependency(models.Model):
    """A job waits for another: for its end, or for its success."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="dependencies")
    on = models.ForeignKey(Job, models.CASCADE, related_name="dependents")
    after = models.CharField(
        max_length=8,
        choices=[(a.value, a.value) for a in DependencyKind],
        default=DependencyKind.SUCCESS.value,
    )

    class Meta:
        verbose_name_plural = "job dependencies"
        constraints = [models.UniqueConstraint(fields=["job", "on"], name="job_dependency_once")]

    def __str__(self) -> str:
        return f"job {self.job_id} after job {self.on_id}"


class SubmissionKey(models.Model):
    """A client's key: the job that its first request made, the first of a batch, or the prompt.

    digest: of the request's body; the same key with another body is refused. batch: the numbers of
    the batch's jobs; null = it was a single request.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    digest = models.CharField(max_length=64)
    job = models.ForeignKey("scheduler.Job", models.CASCADE, null=True, related_name="+")
    prompt = models.ForeignKey("scheduler.Prompt", models.CASCADE, null=True, related_name="+")
    batch = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "key"], name="submission_key_once_per_user"),
            models.CheckConstraint(
                condition=models.Q(job=None) ^ models.Q(prompt=None),
                name="submission_key_of_job_or_prompt",
            ),
        ]

    def __str__(self) -> str:
        if self.prompt_id is not None:
            return f"submission key of prompt {self.prompt_id}"
        return f"submission key of job {self.job_id}"


class SavedView(models.Model):
    """A filter of the list of jobs that a user has named. query: as JobFilters writes it."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    name = models.CharField(max_length=40)
    query = models.CharField(max_length=600)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "query"], name="saved_view_once")]
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.name} ({self.user})"


class JobPreset(models.Model):
    """Values of the form to submit a job. user None: for all users."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="Empty: for all users.",
    )
    name = models.CharField(max_length=40)
    values = models.JSONField(
        default=dict,
        help_text='Fields of a job with their texts, such as {"gpus": "1", "gpu_memory": "20GiB"}.',
    )

    class Meta:
        verbose_name = "preset of jobs"
        verbose_name_plural = "presets of jobs"
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="job_preset_once")]

    def __str__(self) -> str:
        return self.name


# Notices about jobs


class NotificationSettings(models.Model):
    """When a user is notified about own jobs.

    kinds: names of scheduler.facts.jobs.NoticeKind, for all jobs; a job's own kinds are added.
    channel: a service of the user's own, beside mails. by_browser: open pages of the user show
    them too, in browsers that have the permission.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="+"
    )
    kinds = models.JSONField(default=list, blank=True)
    by_mail = models.BooleanField(default=True)
    by_browser = models.BooleanField(default=False)
    # Hold further jobs of a program after so many failures in a row, each so soon after its start.
    pause_on_quick_failure = models.BooleanField(db_default=False, default=False)
    quick_failures = models.PositiveSmallIntegerField(db_default=3, default=3)
    quick_failure_s = models.PositiveIntegerField(db_default=30, default=30)
    channel = models.OneToOneField(
        "monitor.Channel", models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        verbose_name = "notification settings"
        verbose_name_plural = "notification settings"

    def __str__(self) -> str:
        return f"notifications of {self.user}"


class BrowserNotice(models.Model):
    """A message for the open pages of a user. It is kept for a day; about: as of Message."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    about = models.CharField(max_length=60)
    title = models.CharField(max_length=200)
    text = models.TextField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "about"], name="browser_notice_once")
        ]

    def __str__(self) -> str:
        return self.title


class NotificationCursor(models.Model):
    """The last event that was looked at for notifications. There is one row.

    seen: numbers of the events shortly before it that were looked at; None: all of them.
    soon: waiting jobs whose owners know that they start soon.
    """

    seen_event = models.BigIntegerField(default=0)
    seen = models.JSONField(null=True, default=None)
    soon = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"up to event {self.seen_event}"
