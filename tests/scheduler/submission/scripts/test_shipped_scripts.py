"""The shipped scripts as real jobs: a small real model, and a video that ffmpeg makes."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler.facts.shipped_scripts import SHIPPED
from scheduler.models import Job, ScriptDefinition
from tests.processes.scheduling import Scheduler, log_of
from tests.scheduler.submission.scripts.embedding_model import write_embedding_model

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def scheduler(data: Path) -> Iterator[Scheduler]:
    for facts in SHIPPED:
        ScriptDefinition.objects.update_or_create(name=facts["name"], defaults=facts)
    scheduler = Scheduler()
    yield scheduler
    scheduler.close()


def run(scheduler: Scheduler, owner: User, script: str, **arguments: Any) -> Job:
    """A job of the script that has ended."""
    client = Client()
    client.force_login(owner)
    body = {"script": script, "script_args": arguments, "gpus": 0}
    answer = client.post("/api/jobs/", json.dumps(body), content_type="application/json")
    assert answer.status_code == 201, answer.content
    return scheduler.run_to(Job.objects.get(pk=answer.json()["id"]), within_s=60)


def shown_by_rest(job: Job, person: User) -> Any:
    client = Client()
    client.force_login(person)
    return client.get(f"/api/jobs/{job.pk}/").json()


@pytest.mark.llama
def test_embed_768_embeds_the_lines_of_a_file(
    scheduler: Scheduler, root: User, tmp_path: Path
) -> None:
    texts, vectors, model = (tmp_path / name for name in ("in.txt", "out.jsonl", "tiny.gguf"))
    texts.write_text("a cat\na dog on a mat\na cat\n")
    write_embedding_model(model)

    job = run(scheduler, root, "embed_768", input=str(texts), output=str(vectors), model=str(model))

    assert job.outcome == "succeeded", log_of(job)
    output = {"lines": 3, "dimensions": 768, "output": str(vectors)}
    assert job.result == {"output": output}
    shown = shown_by_rest(job, root)
    assert (shown["state"], shown["task_type"], shown["script"]) == (
        "finished", "embed", "embed_768",
    )  # fmt: skip
    result = shown["result"]
    assert (result["task_id"], result["output"], result["problem"]) == (job.pk, output, None)
    assert 0 < result["duration"] < 60
    lines = [json.loads(line) for line in vectors.read_text().splitlines()]
    assert [line["text"] for line in lines] == ["a cat", "a dog on a mat", "a cat"]
    cat, dog, again = (line["vector"] for line in lines)
    assert [len(cat), len(dog), len(again)] == [768] * 3
    assert math.isclose(sum(x * x for x in cat), 1, rel_tol=1e-3)
    assert max(abs(x - y) for x, y in zip(cat, again, strict=True)) < 1e-4
    assert max(abs(x - y) for x, y in zip(cat, dog, strict=True)) > 1e-2


@pytest.mark.llama
def test_a_model_file_that_is_missing_is_named(
    scheduler: Scheduler, root: User, tmp_path: Path
) -> None:
    texts = tmp_path / "in.txt"
    texts.write_text("a\n")

    job = run(
        scheduler, root, "embed_768", input=str(texts), output=str(tmp_path / "out"),
        model="/nothing/there.gguf",
    )  # fmt: skip

    assert (job.outcome, job.exit_code) == ("failed", 3)
    assert "embed: There is no model file /nothing/there.gguf." in log_of(job)


@pytest.mark.ffmpeg
def test_key_frames_of_a_video_become_images(
    scheduler: Scheduler, root: User, tmp_path: Path
) -> None:
    video, images = tmp_path / "a b.mp4", tmp_path / "images"
    # A key frame each 5 frames, thus each second.
    source = "testsrc=duration=3:size=64x64:rate=5"
    made = ["ffmpeg", "-f", "lavfi", "-i", source, "-g", "5", "-c:v", "mpeg4", str(video)]
    subprocess.run(made, capture_output=True, check=True)

    job = run(scheduler, root, "extract_keyframes", input=str(video), output=str(images), width=32)

    assert job.outcome == "succeeded", log_of(job)
    names = [f"{number:05d}.jpg" for number in (1, 2, 3)]
    assert sorted(path.name for path in images.iterdir()) == names
    assert job.result == {"output": {"images": 3, "output": str(images)}}


@pytest.mark.ffmpeg
def test_a_file_that_is_no_video_fails_with_the_reason(
    scheduler: Scheduler, root: User, tmp_path: Path
) -> None:
    text = tmp_path / "a.mp4"
    text.write_text("no video")

    job = run(
        scheduler, root, "extract_keyframes", input=str(text), output=str(tmp_path / "images")
    )

    assert job.outcome == "failed"
    assert "Invalid data found" in log_of(job)
