"""A job's fields are declared once: every door shows exactly the fields of the table."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest
from django.contrib.auth.models import User

from gpucoord_site.cli import submit
from scheduler.facts.field_types import Door, JobField
from scheduler.facts.job_fields import BY_NAME, JOB_FIELDS, columns, fields_of
from scheduler.facts.jobs import NewJob, Requirement, YieldOptions
from scheduler.jobs.pages.forms import NewJobForm, filled_from
from scheduler.models import Job
from scheduler.submission.intake.api import NewJobBody
from scheduler.submission.intake.steps import read
from tests import jobs_made
from tests.builders import NOW

PARTS = {"": NewJob, "requirement": Requirement, "yield_options": YieldOptions}
# Options of `gpucoord submit` that are about the command, not about the job.
OTHER_OPTIONS = {
    "-h", "--help", "-d", "--detach", "--dry-run", "--json", "--stdin", "--no-stdin", "--token",
    "--url", "--clean-env", "--no-copy",
}  # fmt: skip
# Attributes of NewJob that follow from several fields.
DERIVED = {
    "requirement.among", "requirement.batch",
    "agent", "worker_batch",
    "priority_chosen", "requirement", "memory_is_learned", "yield_options", "after", "task_type",
    "requirement.host_memory_bytes", "requirement.cpus",
    "requirement.usual_memory_bytes", "requirement.usual_cpus",
}  # fmt: skip


def empty_form() -> NewJobForm:
    return NewJobForm(person=User(), now=NOW)


def names(door: Door) -> set[str]:
    return {field.name for field in fields_of(door)}


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(JOB_FIELDS)


def test_the_schema_has_every_field_and_none_beside() -> None:
    assert set(NewJobBody.model_fields) == names(Door.REST) == set(BY_NAME)


def test_the_schema_has_the_defaults_and_the_help_of_the_table() -> None:
    for name, info in NewJobBody.model_fields.items():
        assert info.default == BY_NAME[name].default
        assert info.description
        assert info.description.startswith(BY_NAME[name].help)


def test_the_form_has_every_field_and_none_beside() -> None:
    form = empty_form()

    assert set(form.fields) == names(Door.FORM)
    assert {name: str(field.label) for name, field in form.fields.items()} == {
        field.name: field.label for field in fields_of(Door.FORM)
    }


def test_the_form_shows_every_field_in_a_group_or_at_the_top() -> None:
    grouped = {bound.name for _, group, _ in empty_form().groups for bound in group}

    assert names(Door.FORM) - grouped == {
        "command",
        "gpus",
        "gpu_memory",
        "time_limit",
        "priority",
        "exclusive",
    }


def test_the_command_line_has_every_field_and_none_beside() -> None:
    options = {name for action in submit.submit.parser()._actions for name in action.option_strings}

    assert options - OTHER_OPTIONS == {field.option for field in fields_of(Door.OPTION)}


def test_only_these_fields_have_no_option() -> None:
    """Commands, waiting for the end, input and the shell's state come in other ways."""
    missing = set(BY_NAME) - names(Door.OPTION)

    assert missing == {
        "command",
        "argv",
        "blocking",
        "stdin_base64",
        "environment",
        "group",
        "left_out",
        "limits",
        "umask",
        "script_args",
        "interactive",
    }


@pytest.mark.parametrize("field", JOB_FIELDS, ids=lambda field: field.name)
def test_a_field_says_what_it_is(field: JobField) -> None:
    assert field.label
    assert field.help.endswith(".")
    assert field.sentence.endswith(".")


def test_every_attribute_of_a_new_job_has_one_field() -> None:
    declared = [field.attribute for field in JOB_FIELDS if field.attribute]
    existing = {
        ".".join(filter(None, (part, attribute.name)))
        for part, kind in PARTS.items()
        for attribute in fields(kind)
    }

    assert len(set(declared)) == len(declared)
    assert set(declared) == existing - DERIVED


def test_a_request_without_a_field_means_its_default() -> None:
    defaults = {field.name: field.default for field in JOB_FIELDS if field.default is not None}

    assert read({"command": "x"} | defaults, NOW) == read({"command": "x"}, NOW)


def test_every_column_exists() -> None:
    existing = {field.name for field in Job._meta.get_fields()}

    assert set(columns(NewJob(command="x"))) <= existing


@pytest.mark.django_db
def test_submit_again_fills_in_what_was_submitted(alice: User) -> None:
    raw = {
        "command": "x",
        "gpus": "2",
        "gpu_memory": "20GiB",
        "time_limit": "90 min",
        "capability": "8.0",
        "cpus": "2.5",
        "retries": "2",
        "preemptible": True,
        "yield_signal": "SIGUSR1",
        "grace": "60 s",
    }
    job = jobs_made.waiting(alice)
    for name, value in columns(read(raw, NOW)).items():
        setattr(job, name, value)

    again = filled_from(job)

    assert {name: again[name] for name in raw} == raw | {"grace": "1 min"}
    assert "begin" not in again


def test_the_table_needs_no_heavy_module() -> None:
    code = (
        "import sys, scheduler.facts.job_fields;"
        "print([m for m in ('django', 'pydantic', 'httpx', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)

    assert done.stdout.decode().strip() == "[]"


def test_no_group_of_an_empty_form_is_open() -> None:
    assert [title for title, _, is_open in empty_form().groups if is_open] == []
