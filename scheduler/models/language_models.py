from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from monitor.facts.formats import in_utc
from scheduler.facts.language_models import (
    ENDED,
    OPEN,
    InstanceState,
    ModelNames,
    PredictionMode,
    PromptStatus,
    PromptType,
    Role,
)

GPU_KIND = 120


class ModelService(models.Model):
    """A language model (or another model behind HTTP) that gpucoord starts and stops.

    argv: the program that serves one instance; {model}, {port}, {gpu} and {gpu_memory_fraction} are
    filled in when it is placed. wanted_at: the last request that found no ready instance.
    """

    name = models.CharField(max_length=100, unique=True)
    # Further names in requests.
    aliases = models.JSONField(default=list, blank=True)
    enabled = models.BooleanField(default=True)
    argv = models.JSONField("program and arguments")
    health_path = models.CharField(max_length=200, default="/health")
    api_base_path = models.CharField("path of the API", max_length=200, default="/v1", blank=True)
    gpus = models.PositiveSmallIntegerField("GPUs of each instance", default=1)
    memory_mib = models.PositiveIntegerField("GPU memory in MiB", null=True, blank=True)
    on_gpus = models.JSONField("only on these GPUs", default=list, blank=True)
    min_instances = models.PositiveSmallIntegerField(default=0)
    max_instances = models.PositiveSmallIntegerField(default=1, validators=[MinValueValidator(1)])
    concurrency = models.PositiveSmallIntegerField(
        "requests of an instance at a time", default=4, validators=[MinValueValidator(1)]
    )
    role = models.CharField(
        max_length=20,
        choices=[(role.value, role.value.replace("_", " ")) for role in Role],
        default=Role.WORKER_OR_SCRIPT.value,
    )
    pin = models.BooleanField("never evicted", default=False)
    prediction = models.CharField(
        max_length=10,
        choices=[(mode.value, mode.value) for mode in PredictionMode],
        default=PredictionMode.OFF.value,
    )
    # None = it is never unloaded for being idle.
    keep_alive_s = models.PositiveIntegerField(
        "unload after idle seconds", default=300, null=True, blank=True
    )
    min_residency_s = models.PositiveIntegerField(
        "least seconds between boot and unload", default=60
    )
    boot_timeout_s = models.PositiveIntegerField(
        default=600, validators=[MinValueValidator(1), MaxValueValidator(86_400)]
    )
    # None = by its size.
    boot_s = models.PositiveIntegerField(
        "usual boot time", null=True, blank=True, validators=[MaxValueValidator(86_400)]
    )
    sleep_path = models.CharField(max_length=200, blank=True)
    wake_path = models.CharField(max_length=200, blank=True)
    account = models.CharField("runs as", max_length=150, blank=True)
    created_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    wanted_at = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveSmallIntegerField("failures in a row", default=0)
    retry_at = models.DateTimeField(null=True, blank=True)
    # It left for a job or for the user of its GPU, and has not been loaded again.
    evicted_at = models.DateTimeField(null=True, blank=True)
    problem = models.TextField(blank=True)
    # The batch in exclusive mode that it left its GPUs for; no instance boots meanwhile.
    held_for_batch = models.PositiveBigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.CheckConstraint(
                condition=models.Q(max_instances__gte=1)
                & models.Q(min_instances__lte=models.F("max_instances")),
                name="model_service_instances",
            ),
        ]

    @property
    def gpu_memory_bytes(self) -> int | None:
        """Of each GPU; None = not declared."""
        return None if self.memory_mib is None else self.memory_mib * 1024**2

    @classmethod
    def names(cls) -> ModelNames:
        """The names of all services."""
        return ModelNames(dict(cls.objects.values_list("name", "aliases")))

    def __str__(self) -> str:
        return self.name


class ModelInstance(models.Model):
    """One running copy of a model service, and the job that runs it.

    in_flight: requests that it answers now. It is busy while it is ready and in_flight is above 0.
    """

    service = models.ForeignKey(ModelService, models.CASCADE, related_name="instances")
    job = models.OneToOneField(
        "scheduler.Job", models.SET_NULL, null=True, blank=True, related_name="model_instance"
    )
    state = models.CharField(
        max_length=10,
        choices=[(s.value, s.value) for s in InstanceState],
        default=InstanceState.BOOTING.value,
    )
    reason = models.TextField(blank=True)
    since = models.DateTimeField()
    host = models.CharField(max_length=100, blank=True)
    gpu_uuids = models.JSONField(default=list, blank=True)
    port = models.PositiveIntegerField(null=True, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    memory_bytes = models.BigIntegerField("placed GPU memory", null=True, blank=True)
    # When its process was placed; before that its job waits for a GPU.
    started_boot_at = models.DateTimeField(null=True, blank=True)
    expected_ready_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    answered_at = models.DateTimeField("last answer to a health check", null=True, blank=True)
    last_request_at = models.DateTimeField(null=True, blank=True)
    in_flight = models.PositiveIntegerField(default=0)
    tasks_completed = models.PositiveBigIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)
    # Requests that ModelHour counts already.
    counted = models.PositiveBigIntegerField(default=0)
    # 1: weights in host memory; 2: nothing is kept; 0: it does not sleep.
    sleep_level = models.PositiveSmallIntegerField(default=0)
    # GPU memory that its processes held after it went to sleep; None = not measured yet.
    left_bytes = models.BigIntegerField("GPU memory asleep", null=True, blank=True)
    left_memory = models.BooleanField("its sleep leaves memory", default=False)
    # A request waits for it to wake.
    wake_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    # It ends its requests and gets no new ones, because a batch takes its GPU.
    is_closed = models.BooleanField("gets no new requests", default=False)

    class Meta:
        indexes = [
            models.Index(
                fields=["service"],
                name="model_instance_open",
                condition=~models.Q(state__in=sorted(state.value for state in ENDED)),
            ),
            models.Index(fields=["ended_at"], name="model_instance_ended"),
        ]

    @classmethod
    def open(cls) -> models.QuerySet[ModelInstance]:
        """Instances that have not ended, the oldest first."""
        ended = sorted(state.value for state in ENDED)
        return cls.objects.exclude(state__in=ended).order_by("pk")

    @property
    def address(self) -> str:
        """http://HOST:PORT of its server; "" = not placed yet."""
        return f"http://127.0.0.1:{self.port}" if self.port else ""

    @property
    def api_url(self) -> str:
        """The base of its API, such as http://127.0.0.1:9000/v1; "" = not placed yet."""
        return f"{self.address}{self.service.api_base_path}" if self.port else ""

    @property
    def is_busy(self) -> bool:
        return self.state == InstanceState.READY.value and self.in_flight > 0

    def __str__(self) -> str:
        return f"instance {self.pk} of {self.service.name}"


class ModelBoot(models.Model):
    """How long a service boots on one kind of GPU ("" = on the CPU), and what memory it needs.

    boot_s, wake_s: exponentially weighted means of the measured seconds.
    """

    service = models.ForeignKey(ModelService, models.CASCADE, related_name="boots")
    gpu_model = models.CharField("GPU model", max_length=GPU_KIND, blank=True)
    boot_s = models.FloatField("boot seconds", null=True, blank=True)
    boots = models.PositiveIntegerField("measured boots", default=0)
    wake_s = models.FloatField("seconds to wake", null=True, blank=True)
    peak_memory_bytes = models.BigIntegerField("peak GPU memory", null=True, blank=True)
    measured_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["service", "gpu_model"], name="model_boot_per_gpu_model"
            )
        ]

    def __str__(self) -> str:
        return f"boots of {self.service} on {self.gpu_model or 'the CPU'}"


class ModelHour(models.Model):
    """Requests that a service answered in the hour from `at`."""

    service = models.ForeignKey(ModelService, models.CASCADE, related_name="hours")
    at = models.DateTimeField()
    requests = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["service", "at"], name="model_hour_once")]

    def __str__(self) -> str:
        return f"{self.service} from {in_utc(self.at)}"


# Prompts


class Prompt(models.Model):
    """A prompt to a language model, and its answer.

    attempt: how often it was given to an instance; an answer counts only for the current attempt.
    worker: the process that has it now. instance: the number of the model instance.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="prompts")
    model = models.CharField(max_length=100)
    type = models.CharField(
        max_length=10, choices=[(kind.value, kind.value) for kind in PromptType]
    )
    priority = models.PositiveSmallIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(5)]
    )
    messages = models.JSONField()
    parameters = models.JSONField(default=dict)
    status = models.CharField(
        max_length=10,
        choices=[(status.value, status.value) for status in PromptStatus],
        default=PromptStatus.QUEUED.value,
    )
    attempt = models.PositiveSmallIntegerField(default=0)
    host = models.CharField(max_length=100, blank=True)
    worker = models.CharField(max_length=40, blank=True)
    instance = models.PositiveBigIntegerField(null=True)
    created_at = models.DateTimeField()
    assigned_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    first_token_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    # Why it waits, in a sentence.
    waits_for = models.CharField(max_length=300, blank=True)
    result = models.TextField(blank=True)
    error = models.TextField(blank=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    completion_tokens = models.PositiveIntegerField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["status", "host"],
                name="prompt_open",
                condition=models.Q(status__in=sorted(status.value for status in OPEN)),
            ),
            models.Index(fields=["owner", "-id"], name="prompt_of_owner"),
            models.Index(fields=["finished_at"], name="prompt_finished"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status__in=[status.value for status in PromptStatus]),
                name="prompt_status",
            ),
            models.CheckConstraint(
                condition=models.Q(priority__gte=1, priority__lte=5), name="prompt_priority"
            ),
        ]

    def __str__(self) -> str:
        return f"prompt {self.pk} to {self.model}"

    @property
    def latency_s(self) -> float | None:
        """From its creation to its answer; None while it has none."""
        if self.finished_at is None:
            return None
        return (self.finished_at - self.created_at).total_seconds()

    @property
    def tokens(self) -> int | None:
        """Of the prompt and the answer; None = the server did not report them."""
        if self.prompt_tokens is None and self.completion_tokens is None:
            return None
        return (self.prompt_tokens or 0) + (self.completion_tokens or 0)


class ModelUse(models.Model):
    """The requests of a user to a model in one hour (of UTC), by prompts and by the endpoint.

    warm: requests that waited for a model to wake. cold: for a boot.
    waited_s, first_token_s, answer_s: sums over the requests that got an answer: until an instance
    took it, until the first byte, until the last one.
    estimated: requests whose tokens were counted here, because the server did not report them.
    """

    hour_at = models.DateTimeField()
    model = models.CharField(max_length=100)
    owner = models.CharField(max_length=150)
    requests = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    warm = models.PositiveIntegerField(default=0)
    cold = models.PositiveIntegerField(default=0)
    estimated = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    waited_s = models.FloatField(default=0)
    first_token_s = models.FloatField(default=0)
    answer_s = models.FloatField(default=0)

    class Meta:
        verbose_name = "use of a model"
        verbose_name_plural = "use of models"
        constraints = [
            models.UniqueConstraint(fields=["hour_at", "model", "owner"], name="model_use_once")
        ]
        indexes = [models.Index(fields=["owner", "hour_at"], name="model_use_of_owner")]

    def __str__(self) -> str:
        return f"{self.owner} on {self.model} at {in_utc(self.hour_at)}"
