"""The client for Python programs: the example of docs/users/python.md."""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.contrib.auth.models import User

import gpucoord_site.client
from scheduler.models import Job
from tests.cli_bridge import connect_as
from tests.processes.service import ROOT


@pytest.mark.django_db
def test_a_program_submits_a_job_and_looks_at_it(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_as(alice, monkeypatch)

    with gpucoord_site.client.connect() as gpucoord:
        number = gpucoord.submit({"command": "true", "gpus": 0, "tags": {"project": "vision"}})
        shown = gpucoord.job(number)

    assert Job.objects.get().pk == number
    assert (shown["state"], shown["tags"]) == ("queued", {"project": "vision"})


@pytest.mark.django_db
def test_a_program_submits_a_batch(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    connect_as(alice, monkeypatch)

    with gpucoord_site.client.connect() as gpucoord:
        batch = gpucoord.submit_batch({"command": "cat {item}", "items": ["/a", "/b"]})

    assert batch["id"]


@pytest.mark.django_db
def test_the_refused_job_of_many_is_named(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    connect_as(alice, monkeypatch)
    jobs = [{"command": "true", "gpus": 0}, {"command": "true", "gpus": -1}]

    with (
        gpucoord_site.client.connect() as gpucoord,
        pytest.raises(gpucoord_site.client.RequestFailed, match=r"^jobs\[1\]\.gpus: "),
    ):
        gpucoord.submit_all(jobs)


def test_its_page_names_every_method() -> None:
    text = (ROOT / "docs" / "users" / "python.md").read_text()
    methods = {name for name in vars(gpucoord_site.client.Client) if not name.startswith("_")}

    assert {name for name in methods if f"{name}(" not in text} == {"url", "headers"}


def test_it_imports_no_framework() -> None:
    look = (
        "import gpucoord_site.client, sys\n"
        "print(sorted({'django', 'httpx', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
