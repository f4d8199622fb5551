from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User

from monitor.models import ProcessHour, ProcessMinute
from scheduler.charts import Bar, TimelineGpu
from scheduler.facts.jobs import Requirement
from scheduler.jobs.pages import timeline as timeline_rows
from tests import jobs_made
from tests.builders import GIB, NOW, gpu_uuid
from tests.monitor.past import gpu_row, process_use

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
DAY = timedelta(hours=24)
NOW_T = int(NOW.timestamp())


def bars_of(since: datetime) -> list[Bar]:
    past = timeline_rows.past_jobs(since)
    return [*timeline_rows.job_bars(since, past), *past.bars]


def test_a_running_job_goes_on_and_a_finished_one_has_ended(alice: User) -> None:
    runs = jobs_made.running(alice, on=(1,))
    ended = jobs_made.finished(alice)
    ends_at = NOW + timedelta(minutes=15)
    runs.attempts.update(ends_p50_at=ends_at, ends_p90_at=ends_at)
    bars = {bar.job: bar for bar in bars_of(NOW - DAY)}

    assert bars[runs.pk].end is None
    assert bars[runs.pk].expected_end == NOW_T + 900
    assert bars[ended.pk].end == NOW_T + 180
    assert (bars[ended.pk].state, bars[ended.pk].owner) == ("succeeded", "alice")


def test_a_job_that_ended_before_is_left_out_and_a_job_on_two_gpus_has_two_bars(
    alice: User,
) -> None:
    jobs_made.finished(alice)
    wide = jobs_made.running(alice, on=(0, 1), requirement=Requirement(gpus=2))
    bars = bars_of(NOW + timedelta(hours=1))

    assert [(bar.job, bar.gpu_uuid) for bar in bars] == [
        (wide.pk, gpu_uuid(0)),
        (wide.pk, gpu_uuid(1)),
    ]


def test_no_job_is_left_out_however_many_there_are(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_rows, "NEWEST_ATTEMPTS", 2)
    runs = jobs_made.running(alice)
    ended = [jobs_made.finished(alice) for _ in range(4)]
    past = timeline_rows.past_jobs(NOW - DAY)
    jobs_made.end(runs)
    ended += [jobs_made.finished(alice) for _ in range(2)]

    jobs = [bar.job for bar in (*timeline_rows.job_bars(NOW - DAY, past), *past.bars)]
    assert sorted(jobs) == sorted(job.pk for job in (runs, *ended))


def test_only_gpus_that_were_seen_have_a_row() -> None:
    gpu_row("GPU-old", NOW - 2 * DAY)
    gpu_row("GPU-new", NOW)

    assert timeline_rows.timeline_gpus(NOW - DAY) == [TimelineGpu("GPU-new", 0, "box")]


def test_older_use_comes_by_the_hour_and_lately_by_five_minutes() -> None:
    gpu = gpu_row("GPU-0", NOW)
    use = process_use(gpu, NOW, first_seen_at=NOW - DAY, job_owner="", user="bob")
    facts = {"sm_s": 3000.0, "held_s": 3600.0, "known_s": 3600.0, "memory_byte_s": 3600.0 * GIB}
    hour = NOW_T // 3600 * 3600 - 5 * 3600
    ProcessHour.objects.create(
        use=use, t=hour, memory_known_s=3600, joules=None, peak_memory_bytes=None, **facts
    )
    minute = NOW_T // 300 * 300 - 300
    for i in range(3):
        ProcessMinute.objects.create(use=use, t=minute + 60 * i, sm_s=0, held_s=60, known_s=60)
    old, late = sorted(timeline_rows.pieces(NOW - DAY, NOW), key=lambda piece: piece.begin)

    assert (old.begin, old.end, old.owner) == (hour, hour + 3600, "bob")
    assert old.used_pct == pytest.approx(83.3, abs=0.1)
    assert old.memory_bytes == GIB
    assert (late.begin, late.used_pct) == (minute, 0)


def test_mostly_unmeasured_use_is_unknown() -> None:
    use = process_use(gpu_row("GPU-0", NOW), NOW, first_seen_at=NOW - DAY)
    t = NOW_T // 60 * 60 - 600
    ProcessMinute.objects.create(use=use, t=t, sm_s=0, held_s=60, known_s=20)

    [piece] = timeline_rows.pieces(NOW - DAY, NOW)
    assert piece.used_pct is None
