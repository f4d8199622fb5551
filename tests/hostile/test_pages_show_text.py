"""Texts that users and their programs choose, on pages and in live frames: text, nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.facts.gpus import GpuState
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.probes.host import Identities
from monitor.models import Agent, Event
from monitor.pages.rendering import DASHBOARD, PROCESSES, Renderer
from scheduler.execution import policy as progress
from scheduler.jobs.probes import Decoder
from scheduler.models import Job, JobPreset
from scheduler.submission.batches import actions as batches
from tests import jobs_made
from tests.builders import NOW, gpu, gpu_uuid, host, process, snapshot
from tests.monitor.past import gpu_row

pytestmark = [pytest.mark.hostile, pytest.mark.django_db]
MARKUP = (
    "</script><img src=x onerror=alert(1)>\"'><svg onload=alert(1)>{{7*7}}"
    "<a href=javascript:alert(1)>"
)
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CONTROLS = f"\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\\x1b[2J\x9b8m\x07\x08{BIDI}"
UNSAFE = set(BIDI) | {"\x1b", "\x9b", "\x07", "\x08", "\0"}
MOST_TEXTS = 20
AsUser = Callable[[User], Client]


class Elements(HTMLParser):
    """Elements of a page that a text of a user would have made."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        runs = [name for name in values if name.startswith("on")]
        target = (values.get("href") or values.get("src") or "").strip().lower()
        is_script = tag == "script" and not values.get("src") and "json" not in str(values)
        if runs or is_script or tag == "iframe" or target.startswith("javascript:"):
            self.foreign.append(self.get_starttag_text() or tag)


def check(html: str) -> None:
    """Assert that a page or a fragment has no element and no control character of a user."""
    assert Elements(html).foreign == []
    assert set(html) & UNSAFE == set()


def test_the_check_finds_elements() -> None:
    assert len(Elements(MARKUP).foreign) == 3
    assert Elements("<script>alert(1)</script><a href=' JavaScript:x'>").foreign
    assert not Elements('<script src="/static/app.js"></script>&lt;img onerror=x&gt;').foreign


@pytest.fixture
def box(alice: User, root: User, data: Path) -> Job:
    """A server on which each text that users choose is markup; returns the running job."""
    gpu_row(gpu_uuid(), NOW, name=MARKUP, host="box")
    reading = gpu(name=MARKUP, state=GpuState.EXTERNAL, state_since=NOW)
    foreign = process(user=MARKUP, program=MARKUP, command=(MARKUP, CONTROLS))
    snapshots.record(snapshot([reading], [foreign], host=host(name=MARKUP)))
    job = jobs_made.running(alice, name=MARKUP, command=MARKUP, tags={"project": MARKUP})
    waiting = jobs_made.waiting(alice, name=MARKUP, command=CONTROLS, tags={"a": MARKUP})
    Job.objects.filter(pk=waiting.pk).update(held=f"{MARKUP} holds it.", held_by=MARKUP)
    Job.objects.filter(pk=job.pk).update(result={"output": {MARKUP: MARKUP}}, problem=MARKUP)
    job.attempts.update(progress=0.5, progress_message=MARKUP, progress_at=timezone.now())
    jobs_made.write_log(data, job, f"{MARKUP}{CONTROLS}\x1b[31m{MARKUP}\x1b[0m\n".encode())
    for severity in Event.Severity.values:
        Event.objects.create(
            at=timezone.now(), kind="GPU_LOST", severity=severity, text=MARKUP, owner=MARKUP,
            host=MARKUP, gpu_uuid=gpu_uuid(), job_ref=str(job.pk),
        )  # fmt: skip
    Agent.objects.create(user=alice, name=MARKUP, created_at=NOW, running_jobs=1, gpu_minutes=1)
    JobPreset.objects.create(user=alice, name=MARKUP, values={"command": MARKUP})
    return job


PAGES = (
    "/", "/timeline/", "/processes/", "/jobs/", "/jobs/?name=%3Cimg%20src=x%20onerror=alert(1)%3E",
    "/jobs/new/", "/jobs/new/?like={job}", "/jobs/{job}/", "/jobs/{waiting}/",
    "/jobs/{job}/cancel/", "/events/",
    "/incidents/", "/hosts/", "/shares/", "/status/", "/models/", "/batches/", "/scripts/",
    "/idle-work/", "/account/", "/account/notifications/", "/users/alice/", "/gpus/{gpu}/",
    "/reports/?last=7d", "/reports/tags/?tag=project", "/windows/", "/disks/", "/mode/", "/rules/",
    "/search/?q=%3Cimg%20src=x%20onerror=alert(1)%3E", "/admin/scheduler/job/",
    "/admin/scheduler/job/{job}/change/", "/admin/monitor/event/",
)  # fmt: skip


def test_no_page_has_an_element_of_a_user(
    box: Job, alice: User, root: User, as_user: AsUser
) -> None:
    waiting = Job.objects.get(state="queued").pk
    browsers, texts = [as_user(alice), as_user(root)], 0
    for path in PAGES:
        address = path.format(job=box.pk, waiting=waiting, gpu=gpu_uuid())
        for browser in browsers[path.startswith("/admin/") :]:
            answer = browser.get(address)
            html = answer.content.decode()
            assert answer.status_code == 200, address
            assert (address, Elements(html).foreign) == (address, [])
            # A form gives back what was submitted.
            if not path.startswith("/jobs/new/"):
                assert (address, set(html) & UNSAFE) == (address, set())
            texts += "&lt;img src=x onerror=alert(1)&gt;" in html
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
    # The others have none of the texts for this user.
    assert texts >= MOST_TEXTS


@pytest.mark.usefixtures("box")
def test_no_live_frame_has_an_element_of_a_user() -> None:
    topics = [DASHBOARD, PROCESSES, f"gpu:{gpu_uuid()}"]
    frame = Renderer().whole(snapshots.newest_all(), topics, timezone.now())
    for topic in topics:
        message = json.loads(frame.message(topic, 0, NOW.timestamp()) or "")
        check(message["content"])
    assert "&lt;img" in json.loads(frame.message(DASHBOARD, 0, NOW.timestamp()) or "")["content"]


@pytest.mark.parametrize("size", [1, 3, 64])
def test_a_live_log_has_text_and_colours_only(size: int) -> None:
    """The page makes text nodes of it, so markup is text there."""
    data = f"{CONTROLS}\x1b[31mred\x1b[0m\x1bPq\x1b\\\x1b[8mtext".encode()
    decoder = Decoder(keeps_colours=True)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    text = "".join(map(decoder.feed, pieces)) + decoder.feed(b"", final=True)

    rest = text.replace("\x1b[31m", "").replace("\x1b[0m", "").replace("\x1b[8m", "")
    assert set(rest) & UNSAFE == set()
    assert "evil.example" not in text
    assert "link" in rest


def test_a_log_by_rest_never_runs_as_a_page(box: Job, alice: User, as_user: AsUser) -> None:
    answer = as_user(alice).get(f"/api/jobs/{box.pk}/log/")

    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]


def test_the_message_of_a_progress_is_printable() -> None:
    parsed = progress.parse(f"0.5 {CONTROLS}x")

    assert parsed is not None
    assert parsed.message.isprintable()


@pytest.mark.parametrize(
    "fields",
    [{"name": CONTROLS}, {"tags": {"a": CONTROLS}}, {"name": "a\u200eb"}],
)
def test_names_and_tags_have_no_control_characters(
    alice: User, as_user: AsUser, fields: dict[str, Any]
) -> None:
    body = json.dumps({"command": "true", "gpus": 0} | fields)

    assert as_user(alice).post("/api/jobs/", body, "application/json").status_code == 422


def test_a_result_is_shown_without_control_characters(
    alice: User, as_user: AsUser, data: Path
) -> None:
    raw = {"command": "true", "gpus": 0}
    batch = batches.submit(raw, [MARKUP], "shared", alice, NOW)
    batch.items.update(status="completed", error="", result={CONTROLS: MARKUP})
    page = as_user(alice).get(f"/batches/{batch.pk}/").content.decode()
    check(page)
    assert "u202e" in page


@pytest.mark.parametrize("name", [b"\x1b[8mx", "\u202ex".encode(), b"a\nb", b"\x9b8m\xc2\x9b"])
def test_the_name_of_a_program_has_no_control_character(tmp_path: Path, name: bytes) -> None:
    """A process chooses it; events, messages and terminals show it."""
    own = tmp_path / "50"
    own.mkdir()
    (own / "comm").write_bytes(name + b"\n")
    program = Identities(0.0, tmp_path)._program(50, None)

    assert program is not None
    assert program.isprintable()
