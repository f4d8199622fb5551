from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucoord_site.config import load_config
from scheduler import supply

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("cpus", "places"), [("1", 1), ("0.5", 1), ("1000", None)])
def test_places_for_jobs_without_a_gpu_never_exceed_the_cpus(
    settings: object,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpus: str,
    places: int | None,
) -> None:
    monkeypatch.setenv("GPUCOORD_CPUS", cpus)
    monkeypatch.setenv("GPUCOORD_CPU_JOBS", "64")
    settings.CONFIG = load_config()  # type: ignore[attr-defined]
    found = supply.plan_policy().cpu_jobs
    assert found == places if places else found <= (os.cpu_count() or 1)
