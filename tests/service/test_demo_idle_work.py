"""The demo's idle work: after the batch, its GPU is idle, and a template starts a job there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucoord_site.demo.jobs import SUBMITTED_JOBS
from gpucoord_site.demo.seeding import ITEMS
from tests.pace import LONGEST_S
from tests.processes.service import wait_until
from tests.service.test_demo import Demo

# The batch takes three to six minutes.
STORY_S = 600


def test_jobs_of_the_queue_leave_the_gpu_of_the_batch_idle() -> None:
    """Those that wait for any GPU run for long, so they have theirs before the batch ends."""
    for_any = [job for job in SUBMITTED_JOBS if job.gpus == 1 and job.on_gpu is None]

    assert {job.name for job in for_any} == {"pretrain gpt2-xl", "embed papers"}


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_visitor_sees_idle_work_start_after_the_batch(tmp_path: Path) -> None:
    with Demo(tmp_path) as demo:
        started = "SELECT text FROM monitor_event WHERE kind = 'IDLE_WORK_STARTED'"
        wait_until(lambda: demo.rows(started), STORY_S, "a job of a template")
        done = "SELECT count(*) FROM scheduler_batchitem WHERE status = 'complete'"
        assert demo.rows(done) == [(ITEMS,)]
        choice = "SELECT template, job FROM scheduler_idlechoice ORDER BY id DESC LIMIT 1"
        ((template, job),) = demo.rows(choice)
        state = f"SELECT state, gpus FROM scheduler_job WHERE id = {job}"
        wait_until(lambda: demo.rows(state)[0][0] == "running", LONGEST_S, "the job runs")
        page = demo.page_of_alice("/idle-work/")
        assert f"/jobs/{job}/" in page
        assert f"{template} " in page
        assert "Seed" in page
