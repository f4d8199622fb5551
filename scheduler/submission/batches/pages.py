"""Pages of batches: the list with a form, and one batch with its items."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.defaultfilters import pluralize
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from scheduler.facts.batches import Approval, BatchState, ExclusiveStep, ItemState
from scheduler.fair_share.rows import Rights
from scheduler.jobs.pages.lines import gpu_links
from scheduler.models import Batch, ExclusiveRun
from scheduler.submission.batches import actions, live, policy, rows
from scheduler.submission.batches.rows import exclusive
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.scripts import rows as script_rows
from scheduler.submission.scripts.pages import argument_lines

PER_PAGE = 100
LARGEST_UPLOAD = 2 * 1024**2


@require_http_methods(["GET", "HEAD", "POST"])
def batches(request: HttpRequest) -> HttpResponse:
    """All batches, newest first, and the form for a new one."""
    is_posted = request.method == "POST"
    person, now = cast(User, request.user), timezone.now()
    form = BatchForm(request.POST, request.FILES) if is_posted else BatchForm()
    if is_posted and (batch := form.submitted_by(person)):
        return redirect("batch", batch.pk)
    listed = Batch.objects.select_related("owner").order_by("-id")
    page = Paginator(listed, PER_PAGE).get_page(request.GET.get("page", "1"))
    form.fields["gpu_mode"].help_text = exclusive_help(person, now)
    context = {"form": form, "page": page, "pending": exclusive.pending(person), **live.load(now)}
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
        context["panel"] = live.panel(row, run, now)
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
    return render(request, "scheduler/batch.html", context)


@require_POST
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    row = _changeable(request, pk)
    count = rows.cancel(row, request.user.get_username(), timezone.now())
    messages.info(request, f"Cancelled {count} item{pluralize(count)}.")
    return redirect("batch", pk)


@require_POST
def share(request: HttpRequest, pk: int) -> HttpResponse:
    """End the exclusive mode, or decline it; the batch goes on sharing GPUs."""
    if exclusive.stop(_changeable(request, pk), request.user.get_username(), timezone.now()):
        messages.info(request, "The batch shares GPUs with other jobs.")
    return redirect("batch", pk)


@require_POST
def approve(request: HttpRequest, pk: int) -> HttpResponse:
    """Let a batch take the GPUs that it asks for."""
    row, person = _batch(pk), cast(User, request.user)
    if not person.is_staff:
        raise PermissionDenied
    if exclusive.approve(row, person.username, timezone.now()):
        messages.info(request, "The batch takes its GPUs as soon as they are free.")
    return redirect("batch", pk)


def exclusive_help(person: User, now: datetime) -> str:
    """The help text of the GPU mode: the GPUs that a batch of this user may take now."""
    about = "Exclusive: models leave their GPUs for the batch, and load again after it."
    if exclusive.needs_no_approval(person):
        return about
    count = exclusive.gpus_by_share(person.username, Rights(now, [person.username]))
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
    script_args = forms.CharField(
        required=False,
        label="Arguments of the script",
        help_text="One NAME=VALUE per line. The item itself is filled in for each job.",
        widget=forms.Textarea({"rows": 2, **_box}),
    )
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
        required=False, label="Or a text file with items", help_text="One item per line."
    )
    name = forms.CharField(required=False, label="Name (optional)", max_length=120)
    gpus = forms.IntegerField(required=False, label="GPUs of each item", min_value=0, initial=1)
    gpu_mode = forms.ChoiceField(
        required=False,
        label="GPU mode",
        choices=[
            ("", "by the number of items"),
            ("shared", "shared with other jobs"),
            ("exclusive", "exclusive"),
        ],
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = [(script.name, script.name) for script in script_rows.enabled()]
        choices = [("", "none: use a command"), *names]
        cast(forms.ChoiceField, self.fields["script"]).choices = choices

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

    def submitted_by(self, person: User) -> Batch | None:
        """None: the form has errors."""
        if not self.is_valid():
            return None
        values = self.cleaned_data
        text = f"{values['items']}\n{values['file']}"
        items = [line.strip() for line in text.splitlines() if line.strip()]
        raw = {name: values[name] for name in ("script", "command", "name") if values[name]}
        raw["gpus"] = 1 if values["gpus"] is None else values["gpus"]
        if values["script_args"]:
            raw["script_args"] = argument_lines(values["script_args"])
        try:
            mode = values["gpu_mode"] or None
            return actions.submit(raw, items, mode, person, timezone.now())
        except UnableToSubmit as error:
            for refusal in error.refusals:
                field = refusal.field.partition(".")[0]
                where = "" if refusal.index is None else f"Item {refusal.index + 1}: "
                where = f"{refusal.field.partition('.')[2]}: " if "." in refusal.field else where
                self.add_error(field if field in self.fields else None, where + refusal.text)
            return None
