"""Texts of Slurm: recorded from 22.05, and built from manual pages for newer versions."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.execution.engines import policy
from scheduler.execution.engines.facts import TaskState, Ticket
from scheduler.execution.engines.slurm import options
from scheduler.facts.blockers import Tier

TEXTS = Path(__file__).parent / "texts"
# Only 22.05 was recorded; see texts/README.md.
VERSIONS = ["22.05", "23.11", "24.11", "25.11"]


def text(name: str) -> str:
    return (TEXTS / f"{name}.txt").read_text().replace("|", policy.SEPARATOR)


@pytest.mark.parametrize("version", VERSIONS)
def test_squeue_of_each_version_gives_the_same_reports(version: str) -> None:
    look = policy.squeue(text(f"squeue-{version}"))

    assert (look.is_answer, look.unread) == (True, 0)
    states = {task.ref: (task.state, task.reason, task.node) for task in look.tasks}
    assert states == {
        "9": (TaskState.ENDED, "BadConstraints", ""),
        "6": (TaskState.WAITING, "Resources", ""),
        "8": (TaskState.WAITING, "BeginTime", ""),
        "10": (TaskState.WAITING, "Priority", ""),
        "7": (TaskState.WAITING, "JobHeldUser", ""),
        "2": (TaskState.RUNNING, "", "n1"),
        "4": (TaskState.RUNNING, "", "n2"),
    }
    assert {task.uid for task in look.tasks} == {12001}
    assert all(task.nonce.startswith("aaaaaaaa") for task in look.tasks)


def test_only_slurm_states_an_expected_start() -> None:
    tasks = {task.ref: task for task in policy.squeue(text("squeue-22.05")).tasks}

    assert tasks["8"].expected_start == datetime(2026, 11, 23, 13, 10, tzinfo=UTC)
    assert tasks["6"].expected_start is None
    assert tasks["2"].expected_start is None


def test_the_gpus_of_a_job_come_from_indices_where_slurm_does_not_count_them() -> None:
    found = policy.job(text("job-22.05"))

    assert (found.gpus, found.gpu_indices) == (1, {"n1": (0,)})


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_the_gpus_of_a_job_come_from_what_was_allocated(version: str) -> None:
    found = policy.job(text(f"job-{version}"))

    assert (found.gpus, found.gpu_indices) == (3, {"gpu03": (0, 1, 3)})
    assert (found.word, found.exit_code, found.signal) == ("RUNNING", 0, 0)


def test_nodes_have_their_gpus_state_and_reason() -> None:
    first, second = policy.nodes(text("nodes-22.05"))

    assert (first.name, first.word, first.gpus, first.gpus_allocated) == ("n1", "MIXED", 2, None)
    assert second.reason == "Low socket*core*thread count, Low CPUs"


def test_a_line_that_cannot_be_read_is_counted_and_the_others_count() -> None:
    look = policy.squeue("slurm: warning\n" + text("squeue-22.05") + "7\x1fRUNNING\n")

    assert (len(look.tasks), look.unread) == (7, 2)


def test_a_list_that_is_too_long_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs that are not read would be missing in it."""
    monkeypatch.setattr(policy, "MOST_LINES", 100)

    assert policy.squeue(simulated(100, 10)).is_answer
    look = policy.squeue(simulated(150, 10))

    assert (look.is_answer, list(look.tasks)) == (False, [])


def test_a_state_of_a_newer_version_is_unknown() -> None:
    line = "5|HIBERNATING|None|1|n1|n1|N/A|".replace("|", policy.SEPARATOR)

    assert policy.squeue(line).tasks[0].state is TaskState.UNKNOWN


def test_a_comment_of_another_program_is_no_nonce() -> None:
    assert policy.nonce_in("gpucoord:0123456789abcdef") == "0123456789abcdef"
    assert policy.nonce_in("my gpucoord:0123456789abcdef") == ""
    assert policy.nonce_in("gpucoord:../../etc") == ""


def test_a_line_break_in_a_comment_makes_no_further_task() -> None:
    mark = "5ecret"
    fields = ["5", "RUNNING", "None", "1000", "n1", "n1", "N/A", "gpucoord:0123456789abcdef"]
    real = policy.SEPARATOR.join(fields)
    imitated = real.replace("RUNNING", "COMPLETED")

    look = policy.squeue(f"{mark}{real}\n{imitated}\n", mark)

    assert [task.word for task in look.tasks] == ["RUNNING"]
    assert look.unread == 1


def test_a_task_of_an_array_is_none_of_gpucoord() -> None:
    line = "5_[1-99]|PENDING|None|1|n1|n1|N/A|gpucoord:0123456789abcdef"

    (task,) = policy.squeue(line.replace("|", policy.SEPARATOR)).tasks

    assert (task.nonce, task.state) == ("", TaskState.WAITING)


@pytest.mark.parametrize(
    "name",
    [
        "x\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:9(IDX:0-8)",
        "x\n   TRES=gres/gpu=9\n   ExitCode=9:9",
    ],
)
def test_a_name_or_comment_of_a_job_does_not_add_to_its_gpus(name: str) -> None:
    recorded = text("job-22.05")
    expected = policy.job(recorded)

    assert policy.job(recorded.replace("JobName=wrap", f"JobName={name}")) == expected
    assert policy.job(recorded.replace("Comment=", f"Comment={name} ")) == expected


def test_a_description_with_two_states_tells_nothing() -> None:
    recorded = text("job-22.05")

    allocation = policy.job(recorded.replace("JobName=wrap", "JobName=x\n   JobState=RUNNING"))

    assert (allocation.gpus, allocation.exit_code, allocation.gpu_indices) == (None, None, {})


def test_the_exit_code_of_an_old_job_comes_from_the_accounting() -> None:
    nonces = [f"{number:032x}" for number in range(4)]
    lines = [
        f"71|COMPLETED|0:0|gpucoord:{nonces[0]}",
        f"72|CANCELLED by 12001|0:15|gpucoord:{nonces[1]}",
        f"73|FAILED|85:0|gpucoord:{nonces[2]}",
        "74|COMPLETED|0:0|another|program",
        f"75|FAILED|many:0|gpucoord:{nonces[3]}",
        "",
    ]

    ends = policy.sacct("\n".join(lines))

    assert {nonce: (end.word, end.exit_code, end.signal) for nonce, end in ends.items()} == {
        nonces[0]: ("COMPLETED", 0, 0),
        nonces[1]: ("CANCELLED", 0, 15),
        nonces[2]: ("FAILED", 85, 0),
    }


def test_the_accounting_of_debian_is_read() -> None:
    ends = policy.sacct((TEXTS / "sacct-22.05.txt").read_text())

    # Two jobs with one nonce: the newer line counts.
    assert {nonce[:4]: (end.word, end.exit_code) for nonce, end in ends.items()} == {
        "abab": ("FAILED", 3),
        "cdcd": ("CANCELLED", 0),
    }


@given(st.text(max_size=300))
def test_any_text_is_parsed_to_bounded_facts(words: str) -> None:
    """A parser that raises would stop the loop; one that invents tasks would end jobs."""
    lines = words.splitlines()

    assert len(policy.squeue(words).tasks) <= len(lines)
    assert len(policy.nodes(words)) <= len(lines)
    assert len(policy.job(words).gpu_indices) <= policy.MOST_NAMES
    assert len(policy.node_names(words)) <= policy.MOST_NAMES
    assert len(policy.sacct(words)) <= len(lines)
    ref = policy.sbatch(words)
    assert ref == "" or ref in words


@pytest.mark.parametrize(
    ("answer", "ref"),
    [("12\n", "12"), ("12;cluster\n", "12"), ("warning: x\n13\n", "13"), ("", ""), ("no", "")],
)
def test_the_number_of_a_submission(answer: str, ref: str) -> None:
    assert policy.sbatch(answer) == ref


@pytest.mark.parametrize(
    ("nodes", "names"),
    [("n1", ["n1"]), ("gpu[03-05],fat1", ["gpu03", "gpu04", "gpu05", "fat1"]), ("", [])],
)
def test_a_list_of_nodes_is_expanded(nodes: str, names: list[str]) -> None:
    assert policy.node_names(nodes) == names


@pytest.mark.parametrize(
    ("reason", "tier"),
    [
        ("Priority", Tier.CONTENTION),
        ("Resources", Tier.CONTENTION),
        ("JobHeldAdmin", Tier.PERSON),
        ("launch failed requeued held", Tier.PERSON),
        ("QOSMaxGRESPerUser", Tier.MY_LIMITS),
        ("AssocGrpGRESMinutes", Tier.MY_LIMITS),
        ("BeginTime", Tier.NOT_YET),
        ("ReqNodeNotAvail, UnavailableNodes:gpu03", Tier.MACHINE),
        ("SomethingNew", Tier.CONTENTION),
    ],
)
def test_each_reason_has_a_tier(reason: str, tier: Tier) -> None:
    assert policy.tier_of(reason) is tier


def test_what_an_operator_sets_comes_before_what_gpucoord_needs() -> None:
    ticket = Ticket(
        job_id=12, nonce="ab", folder="/x/100%", gpus=2, time_limit_s=60, options=("--qos=low",)
    )

    words = options(ticket)

    assert words[0] == "--qos=low"
    assert {"--gres=gpu:2", "--requeue", "--comment=gpucoord:ab", "--time=3"} <= set(words)
    assert "--output=/x/100%%/slurm.out" in words


def simulated(jobs: int, nodes: int) -> str:
    rows = [
        f"{n}|{'RUNNING' if n % 2 else 'PENDING'}|{'None' if n % 2 else 'Priority'}|{1000 + n % 50}"
        f"|gpu{n % nodes:04d}|gpu{n % nodes:04d}|N/A|gpucoord:{n:032x}"
        for n in range(1, jobs + 1)
    ]
    return "\n".join(rows).replace("|", policy.SEPARATOR)


def test_one_look_at_5000_jobs_is_quick() -> None:
    """1000 nodes and 5000 jobs; CPU time, so that other tests do not count."""
    answer = simulated(5000, 1000)
    times = []
    for _ in range(3):
        began = time.process_time()
        assert len(policy.squeue(answer).tasks) == 5000
        times.append(time.process_time() - began)

    assert min(times) <= 0.15
