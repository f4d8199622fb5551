"""At random instants of random worlds, all doors say the same of each job, user and GPU."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from time_machine import TimeMachineFixture

from gpucoord_site.cli import jobs as jobs_command
from gpucoord_site.cli import verbs
from monitor.facts.formats import part
from monitor.pages import metrics as collector
from monitor.pages.metrics import Families
from scheduler import metrics
from scheduler.dispatch.steps import preview
from scheduler.jobs.pages import timeline
from scheduler.models import Job
from tests.agreement import worlds
from tests.builders import GIB
from tests.cli_bridge import connect_as

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data"), pytest.mark.slow]
INSTANTS = 30


class Said(NamedTuple):
    """A quantity of a job, a user, a GPU or the queue, as a door says it."""

    door: str
    subject: str
    quantity: str
    value: object


@pytest.fixture
def look(
    root: User,
    as_user: Callable[[User], Client],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[], list[Said]]:
    """Opens all doors as an operator."""
    client = as_user(root)
    connect_as(root, monkeypatch)

    def command(main: Callable[[list[str]], int], *words: str) -> Any:
        capsys.readouterr()
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return lambda: [
        *_lists("REST list", client.get("/api/jobs/").json()["jobs"]),
        *_lists("queue --json", command(jobs_command.queue)["jobs"]),
        *_each_job(client),
        *_job_table(_text(client, "/jobs/")),
        *_first_page(_text(client, "/")),
        *_timeline(),
        *_rights("REST shares", client.get("/api/shares/").json()["people"]),
        *_users(client, lambda name: command(verbs.quota, "--user", name)),
        *_gpus(client),
        *_metrics(timezone.now()),
    ]


@pytest.mark.parametrize("seed", range(INSTANTS))
def test_all_doors_say_the_same(
    seed: int,
    alice: User,
    bob: User,
    charlie: User,
    data: Path,
    look: Callable[[], list[Said]],
    time_machine: TimeMachineFixture,
) -> None:
    time_machine.move_to(worlds.instant(seed), tick=False)
    worlds.build(seed, (alice, bob, charlie), data)
    said: dict[tuple[str, str], dict[str, object]] = defaultdict(dict)
    for door, subject, quantity, value in look():
        said[subject, quantity][door] = value

    alone = {about: values for about, values in said.items() if len(values) == 1}
    assert not alone
    different = [
        f"{subject}, {quantity}: {values}"
        for (subject, quantity), values in said.items()
        if len(set(values.values())) > 1
    ]
    assert not different, "\n".join(different)


@pytest.mark.parametrize("seed", range(INSTANTS // 2))
def test_each_advised_change_starts_the_job_as_promised(
    seed: int,
    alice: User,
    bob: User,
    charlie: User,
    root: User,
    data: Path,
    as_user: Callable[[User], Client],
    time_machine: TimeMachineFixture,
) -> None:
    time_machine.move_to(worlds.instant(seed), tick=False)
    now = worlds.build(seed, (alice, bob, charlie), data)
    for job in Job.objects.filter(state="queued").order_by("pk"):
        client, before = as_user(job.owner), Job.objects.filter(pk=job.pk).values().get()
        for advice in client.get(f"/api/jobs/{job.pk}/advice/").json()["advice"]:
            if "ask" in advice["change"]:
                continue
            client.post(f"/jobs/{job.pk}/advice/", {"change": json.dumps(advice["change"])})
            worlds.forget()
            start = preview.estimates(now)[job.pk].p50
            promised = _time(advice["expected_start"])
            assert start is not None
            assert promised is not None
            assert start <= promised, advice
            Job.objects.filter(pk=job.pk).update(**before)
            worlds.forget()


def _local(sentence: str) -> str:
    """A page shows times in the zone of the reader, and does not name it."""
    return sentence.replace(" (UTC)", "")


def _text(client: Client, path: str) -> str:
    return re.sub(r"\s+", " ", unescape(client.get(path).text))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


def _second(text: str | None) -> datetime | None:
    """Pages show whole seconds."""
    at = _time(text)
    return at and at.replace(microsecond=0)


def _lists(door: str, rows: list[dict[str, Any]]) -> Iterator[Said]:
    yield Said(door, "queue", "waiting", sum(row["state"] == "queued" for row in rows))
    yield Said(door, "queue", "running", sum(row["state"] == "running" for row in rows))
    for row in rows:
        yield from _job(door, row)


def _job(door: str, row: Mapping[str, Any]) -> Iterator[Said]:
    subject = f"job {row['id']}"
    yield Said(door, subject, "state", row["state"])
    yield Said(door, subject, "end", _second(row["ends_p50_at"]))
    if row["state"] == "queued" and "reason" in row:
        yield Said(door, subject, "reason", _local(row["reason"]))


def _each_job(client: Client) -> Iterator[Said]:
    for pk, state in Job.objects.values_list("pk", "state"):
        door, subject, path = "REST job", f"job {pk}", f"/api/jobs/{pk}/"
        row = client.get(path).json()
        yield from _job(door, {name: row[name] for name in ("id", "state", "ends_p50_at")})
        page = _text(client, f"/jobs/{pk}/")
        yield Said("job page", subject, "state", _badge(page))
        if state != "queued":
            continue
        why = client.get(f"{path}why/").json()
        yield Said("why", subject, "start", _second(why["starts_p50"]))
        yield Said("why", subject, "reason", _local(why["headline"]["headline"]))
        yield Said("why", subject, "position", why["position"])
        answer = _part(r'<p class="answer">(.*?)</p>', page)
        yield Said("job page", subject, "start", _first_time(answer))
        yield Said("job page", subject, "position", _number(r"number (\d+) in the queue", answer))
        headline = _part(r'<p class="why-headline"><strong>(.*?)</strong>', page)
        yield Said("job page", subject, "reason", _untagged(headline))
        text = _part(r"<dt>fair share</dt>.*?<span class=\"small\">(.*?)</span>", page)
        if shares := re.search(r"^(\w+) holds (.*?) of .* target is (.*)$", text):
            owner, use, target = shares.groups()
            yield Said(f"page of job {pk}", f"user {owner}", "shown use", use)
            yield Said(f"page of job {pk}", f"user {owner}", "shown target", target)


def _part(pattern: str, page: str) -> str:
    found = re.search(pattern, page)
    return found[1] if found else ""


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def _first_time(html: str) -> datetime | None:
    found = re.search(r'<time datetime="([^"]+)"', html)
    return _time(found[1]) if found else None


def _untagged(html: str) -> str:
    return re.sub(r"<[^>]+>", "", html).strip()


def _badge(html: str) -> str:
    """The state of a job."""
    shown = _part(r'data-shape="[^"]*">(waiting|held|running)</span>', html)
    return "running" if shown == "running" else "queued"


def _job_table(page: str) -> Iterator[Said]:
    rows = re.findall(r'<tr id="job-(\d+)">(.*?)</tr>', page)
    states = [_badge(row) for _, row in rows]
    yield Said("/jobs/", "queue", "waiting", states.count("queued"))
    yield Said("/jobs/", "queue", "running", states.count("running"))
    for (pk, row), state in zip(rows, states, strict=True):
        subject = f"job {pk}"
        yield Said("/jobs/", subject, "state", state)
        if state == "running":
            yield Said("/jobs/", subject, "end", _first_time(_part(r"ends ~ ?(<time.*?>)", row)))
        else:
            eta = _first_time(_part(r'<td class="nowrap eta">(.*?)</td>', row))
            yield Said("/jobs/", subject, "start", eta)
            why = _part(r'<td class="job-why">(.*?)</td>', row)
            yield Said("/jobs/", subject, "reason", _untagged(why))


def _first_page(page: str) -> Iterator[Said]:
    waiting = _number(r"<b>(\d+)</b> jobs? waiting", page)
    yield Said("dashboard", "queue", "waiting", waiting or 0)
    for row in re.findall(r'<li data-owners="[^"]*">(.*?)</li>', page):
        subject = "job " + _part(r'href="/jobs/(\d+)/"', row)
        yield Said("dashboard", subject, "state", _badge(row))
        where = _untagged(_part(r'<span class="where".*?>(.*?)</span>', row))
        if _badge(row) == "queued":
            yield Said("dashboard", subject, "reason", where.partition(" · ")[2])
    for index, used, row in re.findall(
        r'data-gpu-row="(\d)".*?<b data-v="0">(\d+)</b>(.*?)<div class="b-time"', page
    ):
        yield Said("dashboard", f"GPU {index}", "use", float(used))
        held = _part(r'<b data-v="1" data-d="3">([\d.]+)</b>', row)
        yield Said("dashboard", f"GPU {index}", "memory", float(held))


def _timeline() -> Iterator[Said]:
    now = timezone.now()
    for row in timeline.build(now).rows:
        for bar, _ in row.bars:
            if bar.job is None:
                continue
            begin = datetime.fromtimestamp(bar.begin, UTC)
            if begin > now:
                yield Said("timeline", f"job {bar.job}", "start", begin)
            else:
                end = bar.expected_end and datetime.fromtimestamp(bar.expected_end, UTC)
                yield Said("timeline", f"job {bar.job}", "end", end)


def _rights(door: str, rows: list[dict[str, Any]]) -> Iterator[Said]:
    for row in rows:
        subject = f"user {row['name']}"
        for figure in ("entitlement_pct", "target_share_pct", "use_pct"):
            yield Said(door, subject, figure, row[figure])
        for shown, figure in (("shown use", "use_pct"), ("shown target", "target_share_pct")):
            value = row[figure]
            yield Said(door, subject, shown, part(None if value is None else value / 100))


def _users(client: Client, quota: Callable[[str], dict[str, Any]]) -> Iterator[Said]:
    page = _text(client, "/shares/")
    for name in ("alice", "bob", "charlie"):
        yield from _rights("REST quota", [client.get("/api/quota/", {"user": name}).json()])
        yield from _rights("quota --json", [quota(name)])
        row = _part(rf'<tr id="share-{name}-\d+">(.*?)</tr>', page)
        cells = [_untagged(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row)]
        yield Said("/shares/", f"user {name}", "shown use", cells[1])
        yield Said("/shares/", f"user {name}", "shown target", cells[2])


def _gpus(client: Client) -> Iterator[Said]:
    for row in client.get("/api/gpus/").json()["gpus"]:
        subject = f"GPU {row['index']}"
        yield Said("REST GPUs", subject, "use", row["utilization_pct"])
        yield Said("REST GPUs", subject, "memory", row["memory_used_bytes"] / GIB)
        for job in row["tasks"]:
            yield Said(f"REST {subject}", f"job {job['job_ref']}", "end", _second(job["ends_at"]))


def _metrics(now: datetime) -> Iterator[Said]:
    families = Families()
    metrics.add_metrics(families, now)
    collector.add_metrics(families, now)
    for metric in families.collect():
        for name, labels, value, *_ in metric.samples:
            if name == "gpucoord_jobs" and labels["state"] in ("queued", "running"):
                state = {"queued": "waiting"}.get(labels["state"], labels["state"])
                yield Said("/metrics", "queue", state, int(value))
            elif name == "gpu_utilization_percent":
                yield Said("/metrics", f"GPU {labels['index']}", "use", value)
            elif name == "gpu_memory_used_bytes":
                yield Said("/metrics", f"GPU {labels['index']}", "memory", value / GIB)
