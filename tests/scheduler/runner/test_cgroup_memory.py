from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.runner.confine.cgroups import Cgroup


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("memory.events", "low 0\noom 1\noom_kill 2\noom_group_kill 1\n", True),
        ("memory.events", "low 0\noom 3\noom_kill 0\n", False),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", True),
        ("memory.oom_control", "oom_kill_disable 1\nunder_oom 1\noom_kill 0\n", False),
    ],
)
def test_it_knows_whom_the_kernel_killed_for_memory(
    tmp_path: Path, name: str, text: str, told: bool
) -> None:
    (tmp_path / name).write_text(text)

    assert Cgroup((tmp_path,)).ran_out_of_memory() is told


def test_without_a_cgroup_nobody_knows(tmp_path: Path) -> None:
    assert not Cgroup((tmp_path / "gone",)).ran_out_of_memory()
