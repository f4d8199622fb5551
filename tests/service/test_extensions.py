"""Each extension can be switched off alone, and all of them together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpucoord_site.cli import main as command_line
from gpucoord_site.config.extensions import COMMANDS, ROOMS, known, rooms_off
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.intake.steps import checked
from tests.builders import NOW
from tests.pace import LONGEST_S
from tests.processes.service import ROOT, Service

PAGES_OF = {
    "batches": {"/batches/", "/folders/", "/idle-work/", "/scripts/"},
    "capacity": {"/reports/capacity/"},
    "cleanup": {"/disks/", "/disks/clean/"},
    "models": {"/add-model/", "/models/"},
    "schedules": {"/reports/stored/"},
}
# Pages that only take a POST, and those that lead to another page.
OPEN = {200, 302, 405}


def opened(extensions: list[str], data: Path) -> dict[str, Any]:
    """The answer of all_pages.py while only these extensions are on."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GPUCOORD_DATA": str(data),
        "GPUCOORD_EXTENSIONS": ",".join(extensions),
    }
    command = [sys.executable, "-m", "tests.service.all_pages"]
    done = subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, timeout=LONGEST_S)
    assert done.returncode == 0
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def loaded(modules: list[str], rooms: tuple[str, ...]) -> list[str]:
    return [name for name in modules if any(f"{name}.".startswith(f"{room}.") for room in rooms)]


@pytest.mark.processes
@pytest.mark.parametrize("off", sorted(set(ROOMS) - set(COMMANDS.values())))
def test_without_one_extension_the_other_pages_open_and_its_own_are_not_found(
    off: str, tmp_path: Path
) -> None:
    answer = opened([name for name in ROOMS if name != off], tmp_path)

    gone = {path for path, status in answer["pages"].items() if status not in OPEN}
    assert gone == PAGES_OF.get(off, set())
    assert {answer["pages"][path] for path in gone} <= {404}
    assert loaded(answer["modules"], ROOMS[off]) == []
    assert answer["dead"] == {}


@pytest.mark.processes
def test_without_extensions_nothing_of_them_is_loaded_and_the_rest_opens(tmp_path: Path) -> None:
    answer = opened(["none"], tmp_path)

    gone = {path for path, status in answer["pages"].items() if status not in OPEN}
    assert gone == set().union(*PAGES_OF.values())
    assert loaded(answer["modules"], rooms_off([])) == []
    # No link leads to a page that is gone, and what was left of a batch is in the queue.
    assert answer["dead"] == {}
    assert answer["shows_item"]


@pytest.mark.processes
def test_a_job_runs_to_its_end_without_extensions(tmp_path: Path) -> None:
    with Service(tmp_path / "data", GPUCOORD_EXTENSIONS="none") as service:
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GPUCOORD_DATA": str(service.data),
            "GPUCOORD_PROBE": "simulated",
            "GPUCOORD_EXTENSIONS": "none",
            "GPUCOORD_URL": service.address,
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }
        command = [sys.executable, "-m", "gpucoord_site"]
        token = subprocess.run(
            [*command, "token", "admin", "--name", "t"], env=env, capture_output=True, check=True
        )
        env["GPUCOORD_TOKEN"] = token.stdout.decode().strip()
        done = subprocess.run(
            [*command, "run", "--", "echo", "it ran"],
            env=env,
            capture_output=True,
            timeout=LONGEST_S,
        )

    assert (done.returncode, b"it ran" in done.stdout) == (0, True)


@pytest.mark.django_db
def test_an_interactive_job_is_refused_without_terminals(settings: Any) -> None:
    settings.CONFIG = replace(settings.CONFIG, extensions=[])
    with pytest.raises(UnableToSubmit) as refused:
        checked({"command": "bash", "interactive": True}, NOW)

    assert [refusal.field for refusal in refused.value.refusals] == ["interactive"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_commands_of_an_extension_that_is_off_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCOORD_EXTENSIONS", "none")
    monkeypatch.setattr(sys, "argv", ["gpucoord", name])

    assert command_line.main() == command_line.USAGE_ERROR
    assert f"gpucoord {name} is switched off" in capsys.readouterr().err


def test_a_setting_names_extensions_that_exist() -> None:
    assert known(["demo", "slurm"]) == ["demo", "slurm"]
    assert known(["none"]) == []
    with pytest.raises(ValueError, match="tetris is no extension"):
        known(["tetris"])


def test_each_module_of_an_extension_is_there() -> None:
    missing = [
        room
        for rooms in ROOMS.values()
        for room in rooms
        if not (ROOT / room.replace(".", "/")).is_dir()
        and not (ROOT / f"{room.replace('.', '/')}.py").is_file()
    ]

    assert missing == []
