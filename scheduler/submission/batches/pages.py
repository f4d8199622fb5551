"""Pages of batches: the list with a form, and one batch with its items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.forms import BoundField
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.defaultfilters import pluralize
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from msgspec import Struct

from monitor.facts.accounts import GpuTask
from monitor.facts.readings import GpuReading
from monitor.gpus.rows import snapshot as snapshots
from monitor.pages.cards import STATES
from monitor.runtime.rows.database import compiled_once
from scheduler.facts.field_types import Door
from scheduler.facts.job_fields import fields_of
from scheduler.facts.jobs import JobState
from scheduler.facts.language_models import PromptStatus
from scheduler.facts.scripts import Approval, BatchState, ExclusiveStep, ItemState
from scheduler.fair_share.rows import Rights
from scheduler.jobs.pages.forms import job_field
from scheduler.jobs.pages.serialise import gpu_links, latest_number
from scheduler.jobs.policy import last_lines
from scheduler.models import Batch, BatchItem, ExclusiveRun, Job, Prompt
from scheduler.runner import files
from scheduler.submission.batches import actions, policy, rows
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.scripts import rows as script_rows
from scheduler.submission.scripts.pages import PREFIX, argument_fields, arguments_of

# Running batches as pages show them: progress, GPUs, and the lengths of the queues.


MOST_BATCHES = 4
# Of a host with more GPUs, only those of the batch are listed.
MOST_GPUS = 16
STEP_WORDS: Mapping[ExclusiveStep, str] = {
    ExclusiveStep.WAITING: "Waits for {waits_for}",
    ExclusiveStep.ANNOUNCED: "Announced: models on its GPUs stop taking prompts soon",
    ExclusiveStep.DRAINING: "New prompts queue, running prompts finish",
    ExclusiveStep.UNLOADING: "Models leave its GPUs",
    ExclusiveStep.WORKING: "Its GPUs run items of the batch only",
    ExclusiveStep.RELOADING: "Models load again, one after another",
    ExclusiveStep.ENDED: "Prompts have resumed",
}


class BatchGpu(Struct, frozen=True):
    """A GPU beside a batch, with its state as on its card.

    percent: of the job on it; ends_at: its expected end. since: when its state began. completed:
    the requests of its model, or the items of its worker.
    """

    uuid: str
    label: str
    state: str
    shape: str
    is_own: bool
    content: str = ""
    percent: int | None = None
    ends_at: datetime | None = None
    since: datetime | None = None
    completed: str = ""


class Queues(Struct, frozen=True):
    prompts: int
    jobs: int
    items: int


class BatchPanel(Struct, frozen=True):
    """A running batch, or one whose exclusive mode has not ended. step: "" = it shares GPUs."""

    id: int
    name: str
    owner: str
    completed: int
    failed: int
    total: int
    percent: str
    eta: datetime | None
    step: str = ""
    step_text: str = ""
    step_since: datetime | None = None
    gpus: tuple[BatchGpu, ...] = ()

    @property
    def mode(self) -> str:
        """A batch that waits for its GPUs shares others meanwhile."""
        is_shared = self.step in ("", ExclusiveStep.WAITING.value)
        return "BATCH (shared)" if is_shared else "BATCH (exclusive)"


def running(now: datetime) -> tuple[BatchPanel, ...]:
    """The oldest running batches, without their GPUs."""
    if not _running():
        return ()
    rows = Batch.objects.filter(state=BatchState.RUNNING.value).select_related("owner")
    return tuple(panel(batch, None, now) for batch in rows.order_by("id")[:MOST_BATCHES])


def load(now: datetime) -> dict[str, Any]:
    runs = {run.pk: run for run in _open_runs()}
    if not runs and not _running():
        return {"batches": (), "queues": None}
    running_rows = Batch.objects.filter(state=BatchState.RUNNING.value)
    batches = (
        (running_rows | Batch.objects.filter(pk__in=runs)).select_related("owner").order_by("id")
    )
    chosen = sorted(batches[:50], key=lambda batch: (batch.pk not in runs, batch.pk))
    panels = tuple(panel(batch, runs.get(batch.pk), now) for batch in chosen[:MOST_BATCHES])
    return {"batches": panels, "queues": queues() if panels else None}


@compiled_once
def _open_runs() -> QuerySet[ExclusiveRun]:
    return ExclusiveRun.objects.exclude(step=ExclusiveStep.ENDED.value).order_by("batch_id")


@compiled_once
def _running() -> QuerySet[Batch]:
    """One of the running batches, if there is any."""
    return Batch.objects.filter(state=BatchState.RUNNING.value).order_by("id")[:1]


def panel(batch: Batch, run: ExclusiveRun | None, now: datetime) -> BatchPanel:
    eta = policy.expected_end(rows.running_pace(batch), now)
    facts = BatchPanel(
        id=batch.pk,
        name=batch.name,
        owner=batch.owner.username,
        completed=batch.completed,
        failed=batch.failed,
        total=batch.total_items,
        percent=f"{100 * batch.completed / max(1, batch.total_items):.3g}",
        # Whole minutes: the region changes no more often.
        eta=eta.replace(second=0, microsecond=0) if eta else None,
    )
    if run is None or run.step == ExclusiveStep.ENDED.value:
        return facts
    step = ExclusiveStep(run.step)
    return BatchPanel(
        **{name: getattr(facts, name) for name in _SHARED},
        step=step.value,
        step_text=STEP_WORDS[step].format(waits_for=run.waits_for or "its turn"),
        step_since=run.since,
        gpus=gpus_of(run),
    )


_SHARED = ("id", "name", "owner", "completed", "failed", "total", "percent", "eta")


def gpus_of(run: ExclusiveRun) -> tuple[BatchGpu, ...]:
    """The GPUs of the host of an exclusive run; of a large host, those that the batch has."""
    snapshot = snapshots.newest(run.host) if run.host else None
    readings: Sequence[GpuReading] = snapshot.gpus if snapshot else ()
    if len(readings) > MOST_GPUS:
        readings = [gpu for gpu in readings if gpu.uuid in run.gpu_uuids]
    tasks = snapshots.gpu_tasks()
    return tuple(_gpu(gpu, run, tasks.get(gpu.uuid, ())) for gpu in readings)


def _gpu(gpu: GpuReading, run: ExclusiveRun, tasks: Sequence[GpuTask]) -> BatchGpu:
    task = tasks[0] if tasks else None
    word, shape = STATES[gpu.state] if gpu.state else ("unknown", "unknown")
    return BatchGpu(
        uuid=gpu.uuid,
        label=f"GPU {gpu.index}",
        state=word,
        shape=shape,
        is_own=gpu.uuid in run.gpu_uuids,
        content=task.name if task else "",
        percent=None if task is None or task.progress is None else int(task.progress * 100),
        ends_at=task.ends_at if task else None,
        since=gpu.state_since,
        completed=task.completed if task else "",
    )


def queues() -> Queues:
    """Waiting prompts, waiting jobs, and items that have no job yet."""
    jobs = Job.objects.filter(state=JobState.QUEUED.value, model_service=None)
    prompts = Prompt.objects.filter(status=PromptStatus.QUEUED.value)
    return Queues(prompts=prompts.count(), jobs=jobs.count(), items=rows.queued_items())


PER_PAGE = 100
LARGEST_UPLOAD = 2 * 1024**2
MOST_FAILURES, LOG_TAIL = 5, 4096
# Fields of a job that each item has.
FOR_EACH_ITEM = ("gpus", "gpu_memory", "time_limit", "priority")


@require_http_methods(["GET", "HEAD", "POST"])
def batches(request: HttpRequest) -> HttpResponse:
    """All batches, newest first, and the form for a new one."""
    person, now = cast(User, request.user), timezone.now()
    checked = None
    if request.method == "POST":
        form = BatchForm(request.POST, request.FILES, script=request.POST.get("script", ""))
        checked = form.checked_by(person, now)
        if checked is not None and "check" not in request.POST:
            return redirect("batch", checked.store(now).pk)
    else:
        form = BatchForm(script=request.GET.get("script", ""))
    listed = Batch.objects.select_related("owner").order_by("-id")
    page = Paginator(listed, PER_PAGE).get_page(request.GET.get("page", "1"))
    form.fields["gpu_mode"].help_text = exclusive_help(person, now)
    context = {
        "form": form,
        "checked": checked,
        "page": page,
        "pending": rows.pending(person),
        **load(now),
    }
    return render(request, "scheduler/batches.html", context, status=422 if form.errors else 200)


@require_safe
def batch(request: HttpRequest, pk: int) -> HttpResponse:
    """The state of a batch, and its items for its owner and operators."""
    row = _batch(pk)
    by_status, now = rows.counts(row), timezone.now()
    chosen = request.GET.get("status", "")
    context: dict[str, Any] = {
        "batch": row,
        "counts": by_status,
        "done": row.completed + row.failed + by_status[ItemState.CANCELLED],
        "percent": f"{100 * row.completed / max(1, row.total_items):.3g}",
        "eta": policy.expected_end(rows.pace(row, by_status), now),
        "may_see": _may(request, row),
        "workers": sorted(map(int, row.workers)) if row.state == BatchState.RUNNING else [],
        "chosen": chosen if chosen in by_status else "",
    }
    run = ExclusiveRun.objects.filter(pk=pk).first()
    if run is not None:
        context["run"] = run
        context["panel"] = panel(row, run, now)
        context["steps"] = [(step, datetime.fromisoformat(at)) for step, at in run.log]
        is_open = run.step != ExclusiveStep.ENDED.value and not run.stopped_by
        context["may_share"] = is_open and context["may_see"]
        context["is_asked"] = is_open and run.approval == Approval.ASKED.value
    if context["may_see"]:
        items = row.items.order_by("index")
        items = items.filter(status=chosen) if context["chosen"] else items
        page = Paginator(items, PER_PAGE).get_page(request.GET.get("page", "1"))
        links = gpu_links(item.gpu_uuid for item in page.object_list if item.gpu_uuid)
        context |= {"page": page, "lines": [(i, links.get(i.gpu_uuid)) for i in page.object_list]}
        context["failures"] = [] if context["chosen"] else _failures(row)
    return render(request, "scheduler/batch.html", context)


def _failures(row: Batch) -> list[tuple[BatchItem, str]]:
    """The first failed items with the last lines of their jobs on this host.

    The log of a worker is about many items, so it is not shown.
    """
    failed = row.items.filter(status=ItemState.FAILED.value).select_related("job").order_by("index")
    return [
        (item, "" if item.job is None or row.work else _last_lines(item.job))
        for item in failed[:MOST_FAILURES]
    ]


def _last_lines(job: Job) -> str:
    path = files.log_path(Path(settings.DATA), job.pk, latest_number(job))
    return last_lines(files.read_tail(path, LOG_TAIL))


@require_POST
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    row = _changeable(request, pk)
    count = rows.cancel(row, request.user.get_username(), timezone.now())
    messages.info(request, f"Cancelled {count} item{pluralize(count)}.")
    return redirect("batch", pk)


@require_POST
def share(request: HttpRequest, pk: int) -> HttpResponse:
    """End the exclusive mode, or decline it; the batch goes on sharing GPUs."""
    if rows.stop(_changeable(request, pk), request.user.get_username(), timezone.now()):
        messages.info(request, "The batch shares GPUs with other jobs.")
    return redirect("batch", pk)


@require_POST
def approve(request: HttpRequest, pk: int) -> HttpResponse:
    """Let a batch take the GPUs that it asks for."""
    row, person = _batch(pk), cast(User, request.user)
    if not person.is_staff:
        raise PermissionDenied
    if rows.approve(row, person.username, timezone.now()):
        messages.info(request, "The batch takes its GPUs as soon as they are free.")
    return redirect("batch", pk)


def exclusive_help(person: User, now: datetime) -> str:
    """The help text of the GPU mode: the GPUs that a batch of this user may take now."""
    about = "Exclusive: models leave their GPUs for the batch, and load again after it."
    if rows.needs_no_approval(person):
        return about
    count = rows.gpus_by_share(person.username, Rights(now, [person.username]))
    if not count:
        need = "Your share is worth less than one GPU now, so an operator must approve it."
    else:
        gpus = "1 GPU" if count == 1 else f"{count} GPUs"
        need = (
            f"By your share, it takes at most {gpus} now. If an item needs more, an operator must"
            " approve it."
        )
    return f"{about} {need} Until then, the batch shares GPUs."


@require_POST
def retry(request: HttpRequest, pk: int) -> HttpResponse:
    count = rows.retry_failed(_changeable(request, pk))
    messages.info(request, f"{count} failed item{pluralize(count, ' waits,s wait')} again.")
    return redirect("batch", pk)


def _batch(pk: int) -> Batch:
    return get_object_or_404(Batch.objects.select_related("owner"), pk=pk)


def _may(request: HttpRequest, row: Batch) -> bool:
    person = cast(User, request.user)
    return row.owner_id == person.pk or person.is_staff


def _changeable(request: HttpRequest, pk: int) -> Batch:
    row = _batch(pk)
    if not _may(request, row):
        raise PermissionDenied
    return row


class BatchForm(forms.Form):
    """All values stay text, so that a rejected form shows them unchanged."""

    _box = {"autocomplete": "off", "spellcheck": "false"}
    script = forms.ChoiceField(required=False, label="Script")
    command = forms.CharField(
        required=False,
        label="Command",
        help_text="Instead of a script: a shell line that reads the variable GPUCOORD_ITEM.",
        widget=forms.TextInput({**_box, "placeholder": 'python embed.py "$GPUCOORD_ITEM"'}),
    )
    items = forms.CharField(
        required=False,
        label="Items",
        help_text="One per line, such as paths of files.",
        widget=forms.Textarea({"rows": 4, **_box}),
    )
    file = forms.FileField(
        required=False,
        label="Or a text file with items",
        help_text="One item per line.",
        # A form is not stored, so there is no file to remove.
        widget=forms.FileInput,
    )
    name = forms.CharField(required=False, label="Name (optional)", max_length=120)
    gpu_mode = forms.ChoiceField(
        required=False,
        label="GPU mode",
        choices=[
            ("", "by the number of items"),
            ("shared", "shared with other jobs"),
            ("exclusive", "exclusive"),
        ],
    )

    def __init__(self, *args: Any, script: str, **kwargs: Any) -> None:
        """script: the name of the chosen script, whose arguments are fields; "" = a command."""
        super().__init__(*args, **kwargs)
        self.fields["script"].initial = script
        scripts = {each.name: each for each in script_rows.enabled()}
        choices = [("", "none: use a command"), *((name, name) for name in scripts)]
        self.fields["script"].widget.attrs |= {
            "hx-get": reverse("batches"),
            "hx-target": "#batch-work",
            "hx-select": "#batch-work",
            "hx-swap": "outerHTML",
        }
        cast(forms.ChoiceField, self.fields["script"]).choices = choices
        self.chosen = scripts.get(script)
        self.fields.update(
            {f.name: job_field(f) for f in fields_of(Door.FORM) if f.name in FOR_EACH_ITEM}
        )
        if self.chosen is not None:
            del self.fields["command"]
            self.fields.update(argument_fields(self.chosen, but=self.chosen.item_argument))

    @property
    def arguments(self) -> list[BoundField]:
        return [self[name] for name in self.fields if name.startswith(PREFIX)]

    @property
    def for_each_item(self) -> list[BoundField]:
        return [self[name] for name in FOR_EACH_ITEM]

    @property
    def item_title(self) -> str:
        """The title of the argument that gets the item; "" = there is none."""
        script = self.chosen
        if script is None or not script.item_argument:
            return ""
        rule = script.schema["properties"][script.item_argument]
        return str(rule.get("title", script.item_argument))

    def clean_file(self) -> str:
        file = self.cleaned_data.get("file")
        if file is None:
            return ""
        if file.size > LARGEST_UPLOAD:
            raise forms.ValidationError("The file is larger than 2 MiB; use gpucoord batch.")
        try:
            return str(file.read().decode())
        except UnicodeDecodeError:
            raise forms.ValidationError("The file is not text in UTF-8.") from None

    def checked_by(self, person: User, now: datetime) -> actions.CheckedBatch | None:
        """The batch, not stored yet; None: the form has errors."""
        if not self.is_valid():
            return None
        values = self.cleaned_data
        text = f"{values['items']}\n{values['file']}"
        items = [line.strip() for line in text.splitlines() if line.strip()]
        names = ("script", "command", "name", *FOR_EACH_ITEM)
        raw = {name: values[name] for name in names if values.get(name)}
        if arguments := arguments_of(values):
            raw["script_args"] = arguments
        try:
            return actions.check(raw, items, values["gpu_mode"] or None, person, now)
        except UnableToSubmit as error:
            for refusal in error.refusals:
                field = refusal.field if refusal.field in self.fields else None
                # Of the first item, arguments are checked, too, which are those of all items.
                index = refusal.index if field == "items" else None
                where = "" if index is None else f"Item {index + 1}: "
                self.add_error(field, where + refusal.text)
            return None
