"""The form to submit a job: what it asks is what REST takes, checked by the same code."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.forms import BoundField

from scheduler.fields import OURS
from scheduler.jobs import PRIORITIES
from scheduler.models import Job
from scheduler.pages.job_lines import plain_gib
from scheduler.plans import PlanPolicy
from scheduler.submitting import UnableToSubmit, admit, checked
from scheduler.wishes import YIELD_SIGNALS

PRIORITY_CHOICES = [(str(value), f"{value} {word}") for value, word in PRIORITIES.items()]
UNDECLARED = plain_gib(PlanPolicy().undeclared_bytes)
# Fields that most people never need; the page opens a group when one is filled in or wrong.
GROUPS = {
    "Name, folder, variables, estimate": ("name", "estimate", "cwd", "env"),
    "CPUs and memory of the host": ("cpus", "memory"),
    "Which GPU": ("model", "on_gpu", "capability", "power", "gpu_share"),
    "When: begin, other jobs, arrays, retries": (
        "begin",
        "after_success",
        "after",
        "array",
        "array_limit",
        "retries",
    ),
    "When its GPU is wanted": ("preemptible", "requeue", "yield_signal", "grace"),
}


class NewJobForm(forms.Form):
    """Everything stays text here, so that what was typed comes back as it was."""

    command = forms.CharField(strip=False, required=False, widget=forms.Textarea({"rows": 3}))
    gpus = forms.CharField(label="GPUs", required=False, initial="1")
    gpu_memory = forms.CharField(label="Memory on each GPU", required=False)
    exclusive = forms.BooleanField(label="Nobody else on these GPUs", required=False)
    priority = forms.ChoiceField(choices=PRIORITY_CHOICES, required=False, initial="3")
    time_limit = forms.CharField(label="Time limit", required=False)
    name = forms.CharField(required=False)
    cwd = forms.CharField(label="Folder", required=False)
    env = forms.CharField(
        label="Variables", strip=False, required=False, widget=forms.Textarea({"rows": 3})
    )
    estimate = forms.CharField(label="Takes about", required=False)
    on_gpu = forms.CharField(label="Only this GPU", required=False)
    model = forms.CharField(label="Model", required=False)
    capability = forms.CharField(label="Compute capability, at least", required=False)
    power = forms.CharField(label="Power rank, at least", required=False)
    gpu_share = forms.CharField(label="At most so much of its time (%)", required=False)
    cpus = forms.CharField(label="At most so many CPUs", required=False)
    memory = forms.CharField(label="At most so much memory", required=False)
    begin = forms.CharField(label="Not before", required=False)
    after_success = forms.CharField(label="After the success of jobs", required=False)
    after = forms.CharField(label="After the end of jobs", required=False)
    array = forms.CharField(label="A job for each index", required=False)
    array_limit = forms.CharField(label="So many of them at a time", required=False)
    retries = forms.CharField(label="Tries again after a failure", required=False)
    preemptible = forms.BooleanField(label="More important jobs may interrupt it", required=False)
    requeue = forms.BooleanField(label="Then run it again from its start", required=False)
    yield_signal = forms.ChoiceField(
        label="Tell it by",
        choices=[
            ("", "the yield file alone"),
            *((name, f"the yield file and {name}") for name in YIELD_SIGNALS),
        ],
        required=False,
    )
    grace = forms.CharField(label="Time to save its work", required=False)

    HINTS = {
        "command": "Runs as /bin/sh -c COMMAND.",
        "gpus": "0 for a job without a GPU.",
        "gpu_memory": f"Such as 20GiB. Left empty: it starts where {UNDECLARED} are free.",
        "time_limit": "Such as 2h or 90 min: stopped after that. Left empty: no limit.",
        "name": "All can read it. Left empty: the program and its first argument.",
        "cwd": "Where it starts. Left empty: the home folder of its account.",
        "env": "A line each: NAME=value. Values are never shown again.",
        "estimate": "How long you think it takes: 2h, 90 min.",
        "on_gpu": "Its number, or its UUID.",
        "model": "Words of its name, or a pattern: H100, RTX*.",
        "power": "Each GPU's page shows its own.",
        "gpu_share": "Of a GPU that it shares.",
        "cpus": "All its processes together. Left empty: what the server gives each job.",
        "memory": "Such as 16GiB: who takes more is killed. Where the server has cgroups.",
        "begin": "Such as 22:00, tomorrow 06:00, 2026-03-02 22:00 or in 2h.",
        "after_success": "Their numbers: 12, 13.",
        "after": "However they end.",
        "array": "Such as 0-9 or 1,3,5. Each has its own in GPUCOORD_ARRAY_INDEX.",
        "retries": "With longer and longer pauses. Out of memory: with a quarter more.",
        "grace": "Such as 60s. Left empty: the server's own.",
    }
    EXAMPLES = {
        "command": "python train.py --epochs 3",
        "gpu_memory": "20GiB",
        "time_limit": "2h",
        "cwd": "/home/you/project",
        "env": "WANDB_MODE=offline",
        "estimate": "90 min",
        "model": "H100",
        "capability": "8.0",
        "begin": "22:00",
        "array": "0-9",
    }
    NUMERIC = ("gpus", "power", "gpu_share", "cpus", "array_limit", "retries", "on_gpu")

    def __init__(self, *args: Any, now: datetime, **kwargs: Any) -> None:
        """`now`: what "in 2h" counts from."""
        super().__init__(*args, **kwargs)
        self._now = now
        for name, field in self.fields.items():
            field.help_text = self.HINTS.get(name, "")
            attributes = {"autocomplete": "off", "spellcheck": "false"}
            if name in self.EXAMPLES:
                attributes["placeholder"] = self.EXAMPLES[name]
            if name in self.NUMERIC:
                attributes["inputmode"] = "numeric"
            field.widget.attrs.update(attributes)
        self.fields["command"].widget.attrs["required"] = True

    def clean(self) -> dict[str, Any]:
        """Read it as REST would; every refusal goes to its field."""
        raw = dict(self.cleaned_data)
        env, mistakes = variables(raw.get("env") or "")
        for mistake in mistakes:
            self.add_error("env", mistake)
        raw["env"] = env
        raw["priority"] = raw.get("priority") or "3"
        try:
            self.cleaned_data["new"] = checked(raw, self._now)
        except UnableToSubmit as error:
            self._take(error)
        return self.cleaned_data

    def submitted_by(self, person: User) -> Job | None:
        """Submit what was typed, if nothing is wrong with it and the person may."""
        if not self.is_valid():
            return None
        try:
            return admit(self.cleaned_data["new"], person, self._now)
        except UnableToSubmit as error:
            self._take(error)
            return None

    def _take(self, error: UnableToSubmit) -> None:
        for refusal in error.refusals:
            self.add_error(refusal.field if refusal.field in self.fields else None, refusal.text)

    @property
    def groups(self) -> list[tuple[str, list[BoundField], bool]]:
        """The fields that few need: (title, fields, whether one was filled in or has a mistake)."""
        return [
            (title, found, any(each.errors or each.value() for each in found))
            for title, names in GROUPS.items()
            for found in [[self[name] for name in names]]
        ]


def variables(text: str) -> tuple[dict[str, str], list[str]]:
    """NAME=value lines, and what is wrong with those that are none."""
    found: dict[str, str] = {}
    mistakes = []
    for number, line in enumerate(text.splitlines(), start=1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals:
            mistakes.append(f"Line {number} is not NAME=value.")
        elif name.strip() in found:
            mistakes.append(f"{name.strip()} stands here twice.")
        else:
            found[name.strip()] = value
    return found, mistakes


def filled_from(job: Job) -> dict[str, Any]:
    """The form's initial values to submit such a job again; variables' values stay secret."""
    return {
        "command": job.command,
        "name": job.name,
        "gpus": str(job.gpus),
        "gpu_memory": _memory(job.gpu_memory_bytes),
        "exclusive": job.exclusive,
        "priority": str(job.priority),
        "time_limit": _seconds(job.time_limit_s),
        "estimate": _seconds(job.estimate_s),
        "cwd": job.cwd,
        "env": _names(job),
        "on_gpu": job.gpu_uuid,
        "model": job.gpu_model,
        "capability": job.capability,
        "power": "" if job.power is None else f"{job.power:g}",
        "gpu_share": "" if job.share_pct is None else str(job.share_pct),
        "cpus": "" if job.cpus is None else f"{job.cpus:g}",
        "memory": _memory(job.memory_bytes),
        "retries": str(job.retries) if job.retries else "",
        "preemptible": job.preemptible,
        "requeue": job.requeue,
        "yield_signal": job.yield_signal,
        "grace": _seconds(job.grace_s),
    }


def _names(job: Job) -> str:
    """The variables as comments, until their values are there again."""
    names = [name for name in sorted(job.env) if not OURS.fullmatch(name)]
    return "".join(f"# {name}=   (enter it again)\n" for name in names)


def _memory(value: int | None) -> str:
    if value is None:
        return ""
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2)):
        if value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


def _seconds(value: int | None) -> str:
    if value is None:
        return ""
    for unit, size in (("h", 3600), ("min", 60)):
        if value % size == 0:
            return f"{value // size} {unit}"
    return f"{value} s"
