from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.gpus.rows import snapshot as snapshots
from scheduler.facts.jobs import NewJob, Refusal, Requirement, YieldOptions
from scheduler.models import Quota
from scheduler.submission.intake import actions as intake_actions
from scheduler.submission.intake.actions import submit
from scheduler.submission.intake.policy import UnableToSubmit, default_name
from scheduler.submission.intake.steps import checked, gpu_named, read
from tests.builders import GIB, NOW, gpu_uuid, snapshot

NO_ACCOUNT = Refusal(field="owner", text="This server has no account alice.")


def mistakes(**raw: Any) -> dict[str, str]:
    with pytest.raises(UnableToSubmit) as error:
        read({"command": "x"} | raw, NOW)
    return {refusal.field: refusal.text for refusal in error.value.refusals}


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
        },
        NOW,
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
    new = read({"argv": ["true"], "gpu_memory": GIB, "time_limit": 90.0}, NOW)

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
        ("env", {"A B": "x"}, "can't be the name"),
        ("env", {"A": "\ud800"}, "value of A"),
        ("env", {"A": "x" * 200_000}, "100000 characters"),
        ("env", {"CUDA_VISIBLE_DEVICES": "0"}, "set by gpucoord"),
        ("env", {"GPUCOORD_JOB_ID": "7"}, "set by gpucoord"),
        ("name", "n" * 121, "121 characters"),
        ("command", "a\0b", "can't be used"),
        ("command", "  ", "Say what to run"),
        ("command", "x" * 200_000, "at most 100000"),
        ("argv", ["true"], "not both"),
        ("time_limit", "90", "has no unit"),
        ("gpu_memory", "8000", "has no unit"),
        ("memory", "8000 B", "less than 1 MiB"),
        ("gpu_memory", 8000, "8000 bytes is less than 1 MiB"),
    ],
)
def test_it_says_what_is_wrong_with_a_field(field: str, value: object, says: str) -> None:
    assert says in mistakes(**{field: value})[field]


@pytest.mark.parametrize(
    "raw",
    [
        {"argv": ["x"] + [""] * 800_000, "command": ""},
        {"env": {f"é{number}": "" for number in range(20_000)}},
        {"after": list(range(400_000))},
        {"after": "1 " * 1_200_000},
        {"array": "0-9999," * 350_000},
        {"time_limit": "1h " * 800_000},
        {"cwd": "x" * 2_500_000},
        {"model": "* " * 1_200_000},
        {"cpus": "9" * 2_500_000},
        {"name": "n " * 1_200_000},
        {"begin": "9" * 2_500_000},
    ],
    ids=lambda raw: next(iter(raw)),
)
def test_a_field_of_megabytes_is_refused_at_once_in_few_words(raw: dict[str, Any]) -> None:
    began = time.process_time()

    with pytest.raises(UnableToSubmit) as error:
        read({"command": "x"} | raw, NOW)

    assert time.process_time() - began < 0.5
    assert len(str(error.value)) < 1000


@pytest.mark.django_db
def test_a_longer_grace_than_the_policy_allows_is_refused() -> None:
    with pytest.raises(UnableToSubmit, match="At most 10 min pass"):
        checked({"command": "x", "gpus": 0, "grace": "11 min"}, NOW)
    assert checked({"command": "x", "gpus": 0, "grace": "10 min"}, NOW).yield_options.grace


def test_a_large_array_that_waits_for_many_jobs_is_refused() -> None:
    text = mistakes(array="0-9999", after=list(range(1, 11)))["after"]

    assert text.startswith("An array of 10000 jobs may wait for at most 2 jobs, not 10.")
    assert read({"command": "x", "array": "0-9999", "after": [1, 2]}, NOW).after


@pytest.mark.django_db
def test_a_gpu_name_of_megabytes_is_refused_without_a_query() -> None:
    with pytest.raises(ValueError, match="names no GPU here") as error:
        gpu_named("G" * 1_000_000)

    assert len(str(error.value)) < 200


def test_it_names_all_mistakes_at_once() -> None:
    assert set(mistakes(gpus=-1, cwd="here", priority=0)) == {"gpus", "cwd", "priority"}


def test_lines_of_a_browser_are_lines_of_the_shell() -> None:
    assert read({"command": "cd x\r\nmake\r\n"}, NOW).command == "cd x\nmake"


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
    assert read({"command": "echo 'unfinished"}, NOW).name == "echo"


def test_it_reads_which_gpu_and_when_and_how_it_yields() -> None:
    new = read(
        {
            "command": "x",
            "model": " H100  80GB ",
            "capability": "9.0",
            "power": "300",
            "gpu_share": 30,
            "cpus": "2.5",
            "memory": "16GiB",
            "preemptible": True,
            "requeue": True,
            "yield_signal": "usr1",
            "grace": "60s",
            "retries": 2,
            "begin": "in 2h",
            "after": [3],
            "after_success": "4, 5",
            "array": "0-9%2",
        },
        NOW,
    )

    assert new.requirement == Requirement(
        model="H100 80GB", capability=(9, 0), power=300.0, share_pct=30
    )
    assert new.yield_options == YieldOptions(
        preemptible=True,
        requeue=True,
        yield_signal="SIGUSR1",
        grace=timedelta(seconds=60),
        retries=2,
    )
    assert (new.cpus, new.memory_bytes) == (2.5, 16 * 1024**3)
    assert new.begin_at == NOW + timedelta(hours=2)
    assert [(d.on, d.after.value) for d in new.after] == [
        (3, "end"),
        (4, "success"),
        (5, "success"),
    ]
    assert (new.array, new.array_limit) == (tuple(range(10)), 2)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("cpus", "many", "how many CPUs"),
        ("cpus", 0, "how many CPUs"),
        ("memory", "lots", "size"),
        ("power", "strong", "a rank above 0"),
        ("power", 0, "a rank above 0"),
        ("power", "nan", "a rank above 0"),
        ("gpu_share", 0, "from 1 to 100"),
        ("gpu_share", "101", "from 1 to 100"),
        ("capability", "new", "like 8.0"),
        ("yield_signal", "KILL", "choose one of"),
        ("grace", "2h", "At most an hour"),
        ("retries", 21, "0 to 20"),
        ("begin", "soon", "write it like"),
        ("after", "train", "their numbers"),
        ("array", "9-0", "goes up"),
        ("array_limit", 4, "an array of jobs"),
        ("model", "x" * 101, "at most 100"),
    ],
)
def test_it_refuses_what_can_not_be_asked(field: str, value: object, says: str) -> None:
    assert says in mistakes(**{field: value})[field]


@pytest.mark.django_db
def test_it_takes_a_gpu_by_its_number_or_the_beginning_of_its_uuid() -> None:
    snapshots.record(snapshot(2))

    assert gpu_named("1") == gpu_named("GPU 1") == gpu_named("gpu-00000001") == gpu_uuid(1)


@pytest.mark.django_db
@pytest.mark.parametrize(("text", "says"), [("7", "names no GPU"), ("GPU-0000", "more than one")])
def test_it_refuses_a_gpu_that_is_not_there_or_not_the_only_one(text: str, says: str) -> None:
    snapshots.record(snapshot(2))

    with pytest.raises(ValueError, match=says):
        gpu_named(text)


@pytest.mark.django_db
def test_it_refuses_to_wait_for_a_job_that_is_not_there() -> None:
    with pytest.raises(UnableToSubmit, match=r"after: .*99"):
        checked({"command": "x", "gpus": 0, "after_success": [99]}, NOW)


@pytest.mark.django_db
def test_an_impossible_count_and_an_unreadable_size_are_told_together() -> None:
    snapshots.record(snapshot(2))

    with pytest.raises(UnableToSubmit) as error:
        checked({"command": "x", "gpus": 99, "gpu_memory": "much"}, NOW)

    told = {refusal.field: refusal.text for refusal in error.value.refusals}
    assert told["gpus"] == "You ask for 99 GPUs; this machine has 2 GPUs."
    assert '"much" is not a size' in told["gpu_memory"]


@pytest.mark.django_db
def test_a_field_that_can_not_be_read_is_told_once_and_its_default_is_not_judged() -> None:
    snapshots.record(snapshot(2))

    with pytest.raises(UnableToSubmit) as error:
        checked({"command": "x", "gpus": "many", "on_gpu": "0"}, NOW)

    assert [refusal.field for refusal in error.value.refusals] == ["gpus"]


@pytest.mark.django_db
def test_the_quota_is_told_with_the_other_mistakes(alice: User) -> None:
    snapshots.record(snapshot(4))
    Quota.objects.create(user=alice, gpus=1)

    with pytest.raises(UnableToSubmit) as error:
        submit({"command": "x", "gpus": 2, "time_limit": "soon"}, alice, NOW)

    assert {refusal.field for refusal in error.value.refusals} == {"gpus", "time_limit"}


@pytest.mark.django_db
def test_account_input_and_minutes_are_told_with_the_other_mistakes(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.record(snapshot(4))
    Quota.objects.create(user=alice, gpu_minutes=60, priority=2)
    monkeypatch.setattr(intake_actions, "MOST_INPUT_BYTES", 2)
    monkeypatch.setattr(intake_actions, "account_refusals", lambda owner: [NO_ACCOUNT])

    raw = {"command": "x", "time_limit": "2h", "stdin_base64": "MTIz", "begin": "?"}
    with pytest.raises(UnableToSubmit) as error:
        submit(raw, alice, NOW)

    fields = {refusal.field for refusal in error.value.refusals}
    assert fields == {"begin", "owner", "queue", "time_limit"}


@pytest.mark.django_db
@pytest.mark.parametrize("field", ["after", "after_success"])
def test_an_unreadable_list_of_jobs_to_wait_for_is_told_with_the_other_mistakes(
    field: str, alice: User
) -> None:
    snapshots.record(snapshot(4))
    Quota.objects.create(user=alice, gpus=1)

    with pytest.raises(UnableToSubmit) as error:
        submit({"command": "x", "gpus": 2, "time_limit": "soon", field: "x"}, alice, NOW)

    told = {refusal.field: refusal.text for refusal in error.value.refusals}
    assert set(told) == {field, "gpus", "time_limit"}
    assert "their numbers" in told[field]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("field", "value"), [("gpus", "many"), ("gpu_memory", "much"), ("gpu_share", "all")]
)
def test_minutes_are_not_computed_from_a_field_that_was_refused(
    field: str, value: str, alice: User
) -> None:
    snapshots.record(snapshot(4))
    Quota.objects.create(user=alice, gpu_minutes=60)

    with pytest.raises(UnableToSubmit) as error:
        submit({"command": "x", "time_limit": "2h", field: value}, alice, NOW)

    assert [refusal.field for refusal in error.value.refusals] == [field]


@pytest.mark.django_db
def test_a_missing_account_is_told_with_the_quota(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.record(snapshot(4))
    Quota.objects.create(user=alice, gpus=1)
    monkeypatch.setattr(intake_actions, "account_refusals", lambda owner: [NO_ACCOUNT])

    with pytest.raises(UnableToSubmit) as error:
        submit({"command": "x", "gpus": 2}, alice, NOW)

    assert {refusal.field for refusal in error.value.refusals} == {"owner", "gpus"}
