from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from monitor.readings import Snapshot
from scheduler import submitting
from scheduler.jobs import NewJob, Requirement
from scheduler.submitting import UnableToSubmit, default_name, read, refuse
from tests.builders import GIB, snapshot


def mistakes(**raw: Any) -> dict[str, str]:
    with pytest.raises(UnableToSubmit) as error:
        read({"command": "x"} | raw)
    return {refusal.field: refusal.text for refusal in error.value.refusals}


def refused(requirement: Requirement, *hosts: Snapshot) -> list[str]:
    return [refusal.text for refusal in refuse(requirement, hosts)]


def test_it_reads_what_a_person_writes() -> None:
    new = read(
        {
            "command": "python train.py",
            "gpus": 2,
            "gpu_memory": "20GiB",
            "time_limit": "2h",
            "estimate": "90 min",
            "env": {"LR": "0.1"},
            "cwd": "/srv",
            "priority": 5,
        }
    )

    assert new == NewJob(
        command="python train.py",
        name="python train.py",
        cwd="/srv",
        env={"LR": "0.1"},
        priority=5,
        requirement=Requirement(gpus=2, memory_bytes=20 * GIB),
        estimate=timedelta(minutes=90),
        time_limit=timedelta(hours=2),
    )


def test_numbers_are_bytes_and_seconds() -> None:
    new = read({"argv": ["true"], "gpu_memory": GIB, "time_limit": 90.0})

    assert new.requirement.memory_bytes == GIB
    assert new.time_limit == timedelta(seconds=90)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("priority", 6, "from 1 (background) to 5"),
        ("gpus", -1, "0 or more"),
        ("gpus", 10**30, "0 or more"),
        ("gpus", "many", "0 or more"),
        ("gpu_memory", "much", '"much" is not a size'),
        ("gpu_memory", -1, "not a size"),
        ("time_limit", "soon", '"soon" is not a duration'),
        ("time_limit", float("nan"), "not a duration"),
        ("estimate", "0", "not a duration"),
        ("cwd", "train", "must start with /"),
        ("cwd", "/a\0b", "can't be used"),
        ("env", {"1A": "x"}, "can't be the name"),
        ("env", {"A": "\ud800"}, "value of A"),
        ("env", {"A": "x" * 200_000}, "100000 characters"),
        ("env", {"CUDA_VISIBLE_DEVICES": "0"}, "set by gpucoord"),
        ("env", {"GPUCOORD_JOB_ID": "7"}, "set by gpucoord"),
        ("name", "n" * 121, "121 characters"),
        ("command", "a\0b", "can't be used"),
        ("command", "  ", "Say what to run"),
        ("command", "x" * 200_000, "at most 100000"),
        ("argv", ["true"], "not both"),
    ],
)
def test_it_says_what_is_wrong_with_a_field(field: str, value: object, says: str) -> None:
    assert says in mistakes(**{field: value})[field]


def test_it_names_all_mistakes_at_once() -> None:
    assert set(mistakes(gpus=-1, cwd="here", priority=0)) == {"gpus", "cwd", "priority"}


def test_lines_of_a_browser_are_lines_of_the_shell() -> None:
    assert read({"command": "cd x\r\nmake\r\n"}).command == "cd x\nmake"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("/usr/bin/python3 /home/a/train.py --lr 1", "python3 train.py"),
        ("API_KEY=s3cret python train.py", "python train.py"),
        ("curl https://me:s3cret@example.org/x", "curl"),
        ("tool --password=s3cret", "tool"),
        ("login user:s3cret", "login"),
        ("nvidia-smi", "nvidia-smi"),
        ("A=1", "job"),
        ("for i in 1 2; do echo; done", "shell"),
    ],
)
def test_a_name_made_up_tells_no_secret(words: str, name: str) -> None:
    assert default_name(words.split()) == name


def test_a_line_that_the_shell_would_not_take_has_a_name_too() -> None:
    assert read({"command": "echo 'unfinished"}).name == "echo"


def test_it_refuses_what_no_gpu_has_with_the_numbers() -> None:
    said = refused(Requirement(memory_bytes=200 * GIB), snapshot(2))

    assert ("200 GiB" in said[0] and "80.0 GiB" in said[0]) or "80 GiB" in said[0]


def test_of_several_hosts_one_must_do() -> None:
    requirement = Requirement(gpus=4)

    assert refused(requirement, snapshot(2), snapshot(4)) == []
    assert "has 3 GPUs" in refused(requirement, snapshot(2), snapshot(3))[0]


def test_it_refuses_gpus_where_there_are_none_with_the_reason() -> None:
    none = snapshot(0, probe="none", problem="No NVIDIA driver is installed.")

    assert "No NVIDIA driver is installed." in refused(Requirement(), none)[0]
    assert refused(Requirement(gpus=0), none) == []


def test_it_takes_the_job_while_the_gpus_can_not_be_read() -> None:
    assert refused(Requirement(gpus=4), snapshot(0, probe="nvml", problem="driver down")) == []
    assert refused(Requirement(gpus=4)) == []


def test_every_field_has_words_for_who_wrote_something_else() -> None:
    from scheduler.api_schemas import NewJobBody

    assert set(NewJobBody.model_fields) <= set(submitting.WORDS)
