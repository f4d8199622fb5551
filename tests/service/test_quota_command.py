from __future__ import annotations

from typing import Any

import pytest

from gpucoord_site.cli import verbs
from tests.builders import GIB

FREE = {"used": 0, "most": None, "committed": 0}
ALICE: dict[str, Any] = {
    "name": "alice",
    "entitlement_pct": 25.0,
    "target_share_pct": None,
    "use_pct": 12.5,
    "share_pct": 30.0,
    "reserved_pct": 20.0,
    "priority": 4,
    "gpu_minutes": {"used": 100.4, "most": 600, "committed": 60},
    "gpus": {"used": 1, "most": 2, "committed": 0},
    "jobs": FREE,
    "memory_bytes": {"used": 40 * GIB, "most": 80 * GIB, "committed": 0},
    "queued": FREE,
    "gpu_minutes_left": 439.6,
    "resets_at": "2026-03-03T00:00:00+01:00",
    "zone": "Europe/Berlin",
}


def told(**changes: Any) -> list[str]:
    return [" ".join(line.split()) for line in verbs.quota_lines(ALICE | changes)]


def test_each_limit_stands_with_what_is_used_of_it() -> None:
    said = told()

    assert "GPU-minutes today 101 of 600, 60 promised to running jobs" in said
    assert "GPU memory 40 GiB of 80 GiB" in said
    assert "running jobs 0 (no limit)" in said
    assert "entitlement 25 % of the GPUs" in said
    assert "use now 12.5 % of the GPUs" in said
    assert not any("target share" in line for line in said)
    assert "still left today 439 GPU-minutes" in said
    assert "share of the quota 30 % of the GPUs, 20 % of it for priorities 4 and 5" in said


def test_the_end_of_the_day_is_shown_in_its_own_zone() -> None:
    assert told()[-1] == "The day ends Tue 3 Mar 00:00 (Europe/Berlin)."


def test_who_has_overdrawn_the_day_has_nothing_left() -> None:
    assert "still left today 0 GPU-minutes" in told(gpu_minutes_left=-12.0)


def test_unlimited_resources_are_not_listed() -> None:
    said = told(share_pct=None, priority=None, gpu_minutes_left=None, gpu_minutes=FREE)

    assert not [line for line in said if line.startswith(("still", "entitled", "highest"))]


def test_an_unreachable_server_is_reported_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = verbs.quota(["--url", "http://127.0.0.1:1", "--token", "x"])

    assert code == 125
    assert "gpucoord can't be reached" in capsys.readouterr().err
