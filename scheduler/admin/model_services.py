"""Admin: model services, their instances, and what was learned about their boots."""

from __future__ import annotations

import shlex
from typing import Any, ClassVar, cast

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from monitor.admin.records import Forgettable, ReadOnly
from monitor.gpus.rows import closures as gpu_closures
from scheduler.admin.records import FormsOfUser
from scheduler.facts import model_fields as policy
from scheduler.facts.model_fields import MODEL_FIELDS
from scheduler.language_models.model_services import steps
from scheduler.models import ModelBoot, ModelHour, ModelInstance, ModelService

# The form has fields of its own for these.
OWN = ("argv", "aliases", "on_gpus")


class ServiceForm(forms.ModelForm):  # type: ignore[type-arg]
    """person: who is logged in; set for each request."""

    person: User
    command = forms.CharField(
        widget=forms.Textarea({"rows": 3}),
        help_text="The program and its arguments; no shell runs it. {model}, {port}, {gpu} and"
        " {gpu_memory_fraction} are filled in. Examples: "
        + " · ".join(f"{name}: {text}" for name, text in policy.COMMANDS.items()),
    )
    aliases = forms.CharField(
        required=False, help_text="Further names in requests, separated by spaces."
    )
    on_gpus = forms.CharField(
        label="Only on these GPUs", required=False, help_text="UUIDs, separated by spaces."
    )

    class Meta:
        model = ModelService
        fields = tuple(f.column for f in MODEL_FIELDS if f.column not in OWN)
        labels: ClassVar = {f.column: f.label for f in MODEL_FIELDS}
        help_texts: ClassVar = {f.column: f.help for f in MODEL_FIELDS}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for each in MODEL_FIELDS:
            # The form of staff who may only view it has no fields.
            if "le" in each.limits and each.column in self.fields:
                least, most = each.limits["ge"], each.limits["le"]
                self.fields[each.column].validators += [
                    MinValueValidator(least),
                    MaxValueValidator(most),
                ]
        if self.instance.pk:
            self.initial["command"] = shlex.join(self.instance.argv)
            self.initial["aliases"] = " ".join(self.instance.aliases)
            self.initial["on_gpus"] = " ".join(self.instance.on_gpus)

    def clean_command(self) -> list[str]:
        try:
            return list(policy.parse_argv(self.cleaned_data["command"]))
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None

    def clean_aliases(self) -> list[str]:
        return str(self.cleaned_data["aliases"]).split()

    def clean_on_gpus(self) -> list[str]:
        texts = str(self.cleaned_data["on_gpus"]).split()
        return gpu_closures.uuids_of(texts, settings.CONFIG.node)

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        stored = ModelService.objects.filter(pk=self.instance.pk).first() or ModelService()
        if not self.errors:
            for column, text in steps.problems(stored, self.columns(), self.person):
                self.add_error(column if column in self.fields else "command", text)
        return values

    def columns(self) -> dict[str, Any]:
        """The columns as the form sets them."""
        columns = {name: self.cleaned_data[name] for name in self.fields if name != "command"}
        return columns | {"argv": self.cleaned_data["command"]}


@admin.register(ModelService)
class ModelServiceAdmin(FormsOfUser):
    """Every change is audited; what REST refuses is refused here too."""

    form = ServiceForm
    list_display = (
        "name",
        "role",
        "gpus",
        "memory_mib",
        "min_instances",
        "max_instances",
        "pin",
        "enabled",
    )
    search_fields = ("name",)
    ordering = ("name",)

    def get_readonly_fields(self, request: HttpRequest, obj: ModelService | None = None) -> Any:
        return () if request.user.is_superuser else ("account",)

    def get_fields(self, request: HttpRequest, obj: ModelService | None = None) -> Any:
        names = [f.column for f in MODEL_FIELDS if f.column not in ("argv", "on_gpus")]
        return [names[0], "command", *names[1:], "on_gpus"]

    def save_model(
        self, request: HttpRequest, obj: ModelService, form: ServiceForm, change: bool
    ) -> None:
        person, now = form.person, timezone.now()
        if change:
            steps.change(ModelService.objects.get(pk=obj.pk), form.columns(), person, now)
        else:
            obj.pk = steps.create(form.columns(), person, now).pk

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Instances and hourly figures are deleted with their service; they are read-only alone."""
        _listed, counts, _lacking, protected = super().get_deleted_objects(objs, request)
        return [f"Model service: {service}" for service in objs], counts, set(), protected

    def delete_model(self, request: HttpRequest, obj: ModelService) -> None:
        steps.remove(obj, cast(User, request.user), timezone.now())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[ModelService]) -> None:
        for row in queryset:
            self.delete_model(request, row)


@admin.register(ModelInstance)
class ModelInstanceAdmin(ReadOnly):
    list_display = (
        "id",
        "service",
        "state",
        "host",
        "port",
        "in_flight",
        "tasks_completed",
        "since",
    )
    list_filter = ("state", "service")
    list_select_related = ("service",)
    search_fields = ("service__name", "host")
    ordering = ("-id",)


@admin.register(ModelHour)
class ModelHourAdmin(ReadOnly):
    list_display = ("service", "at", "requests")
    list_filter = ("service",)
    list_select_related = ("service",)
    search_fields = ("service__name",)
    ordering = ("-at", "service__name")


@admin.register(ModelBoot)
class ModelBootAdmin(Forgettable):
    """Deleting a row makes gpucoord learn it again."""

    list_display = ("service", "gpu_model", "boot_s", "boots", "peak_memory_bytes", "measured_at")
    list_filter = ("gpu_model",)
    list_select_related = ("service",)
    search_fields = ("service__name", "gpu_model")
    ordering = ("service__name", "gpu_model")
