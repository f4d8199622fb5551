"""The form to submit a job: what it asks is what REST takes, checked by the same code."""

from __future__ import annotations

from typing import Any

from django import forms

from scheduler.job_lines import plain_gib
from scheduler.jobs import PRIORITIES, NewJob
from scheduler.models import Job
from scheduler.plans import PlanPolicy
from scheduler.submitting import OURS, UnableToSubmit, checked

PRIORITY_CHOICES = [(str(value), f"{value} {word}") for value, word in PRIORITIES.items()]
UNDECLARED = plain_gib(PlanPolicy().undeclared_bytes)
# Fields that most people never need; the page opens them when one has a mistake.
ADVANCED = ("name", "cwd", "env", "estimate")


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

    HINTS = {
        "command": "Runs as /bin/sh -c COMMAND.",
        "gpus": "0 for a job without a GPU.",
        "gpu_memory": f"Such as 20GiB. Left empty: it starts where {UNDECLARED} are free.",
        "time_limit": "Such as 2h or 90 min: stopped after that. Left empty: no limit.",
        "name": "All can read it. Left empty: the program and its first argument.",
        "cwd": "Where it starts. Left empty: the home folder of its account.",
        "env": "A line each: NAME=value. Values are never shown again.",
        "estimate": "How long you think it takes: 2h, 90 min.",
    }
    EXAMPLES = {
        "command": "python train.py --epochs 3",
        "gpu_memory": "20GiB",
        "time_limit": "2h",
        "cwd": "/home/you/project",
        "env": "WANDB_MODE=offline",
        "estimate": "90 min",
    }
    NUMERIC = ("gpus",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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
            self.cleaned_data["new"] = checked(raw)
        except UnableToSubmit as error:
            for refusal in error.refusals:
                self.add_error(refusal.field, refusal.text)
        return self.cleaned_data

    @property
    def new(self) -> NewJob:
        """What was read; only of a valid form."""
        new: NewJob = self.cleaned_data["new"]
        return new

    @property
    def advanced_open(self) -> bool:
        """Whether one of the advanced fields was filled in or has a mistake."""
        return any(self[name].errors or self[name].value() for name in ADVANCED)


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
