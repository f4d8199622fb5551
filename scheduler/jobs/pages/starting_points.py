"""Values that fill the form to submit a job: presets, past jobs, GPU models, past memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q

from monitor.api import posted_text
from monitor.facts.gpu_states import GpuState
from monitor.facts.input_rules import character_problem, is_number
from monitor.facts.readings import GpuReading, Health
from monitor.gpus.snapshot import rows as snapshots
from monitor.models import Gpu
from scheduler.facts.field_types import Door
from scheduler.facts.job_fields import fields_of
from scheduler.models import Job, JobPreset

MOST_RECENT, MOST_READ, MOST_PRESETS = 5, 60, 20
LONGEST_NAME, LONGEST_VALUES = 40, 20_000
# Values of variables may be secrets, and times and other jobs differ with each submission.
NOT_SAVED = {"env", "begin", "after", "after_success"}
SHORT = 36
MOST_FREE = 16


@dataclass(frozen=True, slots=True)
class Example:
    """A job to try first. gpus: 0 on a server whose GPUs cannot be read."""

    command: str
    gpus: int = 1

    def line(self, options: str = "") -> str:
        words = "gpucoord submit", options, "" if self.gpus else "--gpus 0", "--", self.command
        return " ".join(filter(None, words))


def example() -> Example:
    """It runs on this server as it is now."""
    if settings.CONFIG.probe == "simulated":
        # Without a driver to ask.
        return Example("echo Hello from a job")
    return Example("nvidia-smi -L") if Gpu.objects.exists() else Example("hostname", gpus=0)


@dataclass(frozen=True, slots=True)
class RecentJob:
    """The newest job of a command."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The GPUs of one model. free: idle, healthy and open for jobs now."""

    name: str
    count: int
    free: int
    memory_bytes: int | None
    capability: str


@dataclass(frozen=True, slots=True)
class FreeGpu:
    """A GPU that is idle, healthy and open for jobs now."""

    uuid: str
    label: str


def context(person: User) -> dict[str, Any]:
    """For the page, beside the form."""
    hosts = snapshots.newest_all()
    gpus = [gpu for host in hosts for gpu in host.gpus]
    return {
        "presets": presets(person),
        "recent": recent(person),
        "models": models(gpus),
        "free_gpus": free_gpus({host.host.name: host.gpus for host in hosts}),
    }


def presets(person: User) -> list[JobPreset]:
    """Those of operators for all users, then the user's own."""
    rows = JobPreset.objects.filter(Q(user=None) | Q(user=person))
    return sorted(rows.order_by("name")[:MOST_PRESETS], key=lambda row: row.user_id is not None)


def preset_values(person: User, pk: str) -> dict[str, Any]:
    """The form's values of a preset; {} if there is none that the user may use."""
    if not is_number(pk):
        return {}
    row = JobPreset.objects.filter(Q(user=None) | Q(user=person), pk=pk).first()
    return {} if row is None else form_values(row.values)


def form_values(values: object) -> dict[str, Any]:
    """Only the fields of the form, as texts and flags."""
    if not isinstance(values, Mapping):
        return {}
    names = {field.name for field in fields_of(Door.FORM)} - NOT_SAVED
    return {
        name: value if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if name in names
    }


def save(person: User, request: Any) -> str:
    """Save the posted form as the user's preset. Returns what went wrong, else ""."""
    name = " ".join(posted_text(request, "preset_name", LONGEST_NAME).split())
    if not name or character_problem(name):
        return f"Write a name of 1–{LONGEST_NAME} characters for the preset."
    own = JobPreset.objects.filter(user=person)
    if own.count() >= MOST_PRESETS and not own.filter(name=name).exists():
        return f"You have {MOST_PRESETS} presets. Remove one first."
    values = {key: text for key, text in form_values(request.POST.dict()).items() if text}
    if sum(len(str(text)) for text in values.values()) > LONGEST_VALUES:
        return f"The values have more than {LONGEST_VALUES} characters, the most for a preset."
    JobPreset.objects.update_or_create(user=person, name=name, defaults={"values": values})
    return ""


def recent(person: User) -> list[RecentJob]:
    """The user's newest jobs with different commands."""
    rows = Job.objects.filter(owner=person, model_service=None, script="", interactive=False)
    columns = ("id", "command", "gpus")
    by_command: dict[tuple[str, int], RecentJob] = {}
    for id_, command, gpus in rows.order_by("-id").values_list(*columns)[:MOST_READ]:
        line = " ".join(command.split())
        text = line if len(line) <= SHORT else f"{line[: SHORT - 1]}…"
        by_command.setdefault((command, gpus), RecentJob(id_, text))
    return list(by_command.values())[:MOST_RECENT]


def models(gpus: Iterable[GpuReading]) -> Sequence[ModelChoice]:
    """The models of these GPUs, most powerful first by memory."""
    by_name: dict[str, list[GpuReading]] = {}
    for gpu in gpus:
        if gpu.name:
            by_name.setdefault(gpu.name, []).append(gpu)
    choices = [
        ModelChoice(
            name=name,
            count=len(same),
            free=sum(_is_free(gpu) for gpu in same),
            memory_bytes=same[0].memory_total_bytes,
            capability=same[0].compute_capability or "",
        )
        for name, same in by_name.items()
    ]
    return sorted(choices, key=lambda choice: (-(choice.memory_bytes or 0), choice.name))


def free_gpus(hosts: Mapping[str, Sequence[GpuReading]]) -> Sequence[FreeGpu]:
    """GPUs that a job could get now; those of each host by their number."""
    of_several = len(hosts) > 1
    free = [
        FreeGpu(gpu.uuid, f"GPU {gpu.index} of {host}" if of_several else f"GPU {gpu.index}")
        for host, gpus in sorted(hosts.items())
        for gpu in sorted(gpus, key=lambda gpu: gpu.index)
        if _is_free(gpu)
    ]
    return free[:MOST_FREE]


def _is_free(gpu: GpuReading) -> bool:
    return gpu.state is GpuState.IDLE and gpu.health is Health.OK and gpu.closed is None
