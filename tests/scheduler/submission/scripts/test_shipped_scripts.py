"""The shipped scripts as real jobs: a small real model, and a video that ffmpeg makes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler.facts.scripts import SHIPPED
from scheduler.models import Batch, Job, ScriptDefinition
from scheduler.runner.programs import serve
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


@pytest.mark.llama
def test_the_worker_of_embed_768_loads_its_model_once_for_the_files_of_a_batch(
    scheduler: Scheduler, root: User, tmp_path: Path
) -> None:
    vectors, model = tmp_path / "vectors", tmp_path / "tiny.gguf"
    write_embedding_model(model)
    texts = [tmp_path / f"{name}.txt" for name in ("a", "b", "c")]
    for number, text in enumerate(texts):
        text.write_text("a cat\n" * (number + 1))
    client = Client()
    client.force_login(root)
    body = {
        "script": "embed_768", "items": [str(text) for text in texts], "gpus": 0,
        "script_args": {"output": str(vectors), "model": str(model)},
    }  # fmt: skip
    answer = client.post("/api/batches/", json.dumps(body), content_type="application/json")
    assert answer.status_code == 201, answer.content
    batch = Batch.objects.get(pk=answer.json()["id"])

    scheduler.run_until(lambda: Batch.objects.get(pk=batch.pk).state != "running", within_s=60)

    results = [item.result for item in batch.items.order_by("index")]
    assert [(r["lines"], r["dimensions"]) for r in results] == [(1, 768), (2, 768), (3, 768)]
    written = (vectors / "c.txt.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in written] == ["a cat"] * 3


STAND_INS = {
    "faster_whisper": (
        "from types import SimpleNamespace as N\n"
        "class WhisperModel:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def transcribe(self, path, language=None):\n"
        "        parts = [N(end=1.0, text=' one'), N(end=2.0, text=f' {self.name} {language}')]\n"
        "        return iter(parts), N(duration=2.0)\n"
    ),
    "whisper": (
        "def load_model(name): return Model()\n"
        "class Model:\n"
        "    def transcribe(self, path, language=None):\n"
        "        return {'segments': [{'text': ' one'}, {'text': ' two'}]}\n"
    ),
}


@pytest.mark.parametrize(
    ("package", "text", "progress"),
    [("faster_whisper", "one\nsmall de\n", [0.5, 1.0]), ("whisper", "one\ntwo\n", [1.0, 1.0])],
)
def test_the_worker_of_whisper_uses_the_package_that_is_there(
    tmp_path: Path, package: str, text: str, progress: list[float]
) -> None:
    (tmp_path / f"{package}.py").write_text(STAND_INS[package])
    (tmp_path / "talk.wav").touch()
    items = [str(tmp_path / "talk.wav"), str(tmp_path / "missing.wav")]

    lines = answers_of_whisper(tmp_path, items)

    assert lines[0] == {"ready": True}
    assert [line["progress"] for line in lines if "progress" in line] == progress
    assert (tmp_path / "texts" / "talk.txt").read_text() == text
    assert lines[-2]["output"]["output"] == str(tmp_path / "texts" / "talk.txt")
    assert lines[-1] == {"error": f"FileNotFoundError: There is no recording {items[1]}."}


def test_the_worker_of_whisper_runs_the_program_without_a_package(tmp_path: Path) -> None:
    program = tmp_path / "whisper"
    program.write_text('#!/bin/sh\necho "$@" > "${2#--output_dir=}/talk.txt"\n')
    program.chmod(0o755)
    (tmp_path / "talk.wav").touch()

    lines = answers_of_whisper(tmp_path, [str(tmp_path / "talk.wav")])

    assert "output" in lines[-1], lines
    text = (tmp_path / "texts" / "talk.txt").read_text()
    assert text.startswith(str(tmp_path / "talk.wav"))
    assert "--model=small --language=de" in text


def answers_of_whisper(folder: Path, items: list[str]) -> list[Any]:
    """The lines of the worker for these items; packages and programs are in the folder."""
    (shipped,) = (facts for facts in SHIPPED if facts["name"] == "whisper_transcribe")
    places = {"{python}": sys.executable, "{model}": "small", "{language}": "de"}
    programs = str(Path(serve.__file__).parent)
    argv = [places.get(word, word.replace("{programs}", programs)) for word in shipped["worker"]]
    args = {"output": str(folder / "texts")}
    done = subprocess.run(
        argv,
        input="".join(json.dumps({"item": item, "args": args}) + "\n" for item in items),
        env={"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
