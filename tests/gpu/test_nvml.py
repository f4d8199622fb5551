from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from monitor.facts.readings import Health
from monitor.gpus.sampling.probes.nvml import NvmlProbe, detect

pytestmark = pytest.mark.gpu


def test_it_reads_the_gpus_of_this_machine() -> None:
    sweep, versions = detect(datetime.now(UTC))
    assert sweep.problem is None
    assert versions
    assert sweep.gpus
    for gpu in sweep.gpus:
        assert gpu.health is Health.OK
        assert gpu.uuid.startswith(("GPU-", "MIG-"))
        assert (gpu.memory_used_bytes or 0) <= (gpu.memory_total_bytes or 0)


def test_sweeps_agree_on_what_does_not_change() -> None:
    probe = NvmlProbe()
    probe.open()
    try:
        first, second = (probe.read(datetime.now(UTC), ()) for _ in range(2))
    finally:
        probe.close()
    assert [(g.uuid, g.index, g.name) for g in first.gpus] == [
        (g.uuid, g.index, g.name) for g in second.gpus
    ]


def test_a_closed_probe_opens_again_in_a_child() -> None:
    pid = os.fork()
    if pid == 0:
        try:
            gpus = detect(datetime.now(UTC))[0].gpus
            os._exit(0 if gpus else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_it_reads_what_the_gpus_count_of_their_faults() -> None:
    probe = NvmlProbe()
    probe.open()
    try:
        seen = probe.read(datetime.now(UTC), ())
    finally:
        probe.close()
    assert {health.gpu_uuid for health in seen.health} == {gpu.uuid for gpu in seen.gpus}
    for health in seen.health:
        assert health.clock_reasons is not None
    for gpu in seen.gpus:
        assert gpu.architecture
        assert gpu.cores
        assert gpu.max_sm_clock_mhz
