"""Objects of Kubernetes and Kueue become reports of the engine protocol, as the document says.

The whole lists are built from the documentation of both projects; none was recorded from a cluster.
Single conditions were recorded from clusters of others: OBSERVED.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduler.engines.facts import TaskState
from scheduler.engines.policy import kueue_lists

TEXTS = Path(__file__).parent / "texts"
DOCUMENT = Path(__file__).parents[3] / "docs/operators/kubernetes.md"
HEAD = "| object | condition | status | state |"
# Status of each condition of (Job, Workload).
Conditions = Mapping[str, str]


def rules() -> list[tuple[str, str, str, TaskState]]:
    lines = DOCUMENT.read_text().partition(HEAD)[2].strip().split("\n")[1:]
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return [(kind, name, status, TaskState(state)) for kind, name, status, state in rows]


def state_of(job: Conditions, workload: Conditions) -> TaskState:
    of_kind = {"Job": job, "Workload": workload}
    conditions = {
        kind: {name: {"status": status} for name, status in listed.items()}
        for kind, listed in of_kind.items()
    }
    return kueue_lists.decide(conditions)[0]


RESERVED = {"QuotaReserved": "True"}
ADMITTED = {**RESERVED, "Admitted": "True"}
SUSPENDED = {"Suspended": "True"}
RESUMED = {"Suspended": "False"}


@pytest.mark.parametrize(
    ("job", "workload", "state"),
    [
        # Just created: Kueue has not seen it.
        (SUSPENDED, {}, TaskState.WAITING),
        (SUSPENDED, {"QuotaReserved": "False"}, TaskState.WAITING),
        # Admission checks, such as new machines, are under way.
        (SUSPENDED, RESERVED, TaskState.WAITING),
        (RESUMED, ADMITTED, TaskState.RUNNING),
        (RESUMED, {**ADMITTED, "PodsReady": "True"}, TaskState.RUNNING),
        # Preempted: at first with its old conditions, then back in the queue.
        (RESUMED, {**ADMITTED, "Evicted": "True"}, TaskState.WAITING),
        (
            SUSPENDED,
            {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True", "Requeued": "True"},
            TaskState.WAITING,
        ),
        # Admitted again.
        (RESUMED, {**ADMITTED, "Evicted": "False"}, TaskState.RUNNING),
        ({**RESUMED, "Complete": "True"}, {**ADMITTED, "Finished": "True"}, TaskState.ENDED),
        ({**RESUMED, "Failed": "True"}, ADMITTED, TaskState.ENDED),
        # The Job was deleted with its pods, the Workload is still there.
        ({}, {**ADMITTED, "Finished": "True"}, TaskState.ENDED),
        # Missing, or with conditions of a newer version only: never ended.
        ({}, {}, TaskState.UNKNOWN),
        ({"SuccessCriteriaMet": "False"}, {"Hibernated": "True"}, TaskState.UNKNOWN),
    ],
)
def test_the_documented_rules_give_each_object_its_state(
    job: Conditions, workload: Conditions, state: TaskState
) -> None:
    assert state_of(job, workload) is state


# Conditions of Workloads of real clusters, as users of Kueue published them in
# github.com/kubernetes-sigs/kueue, with the number of the issue or pull request.
OBSERVED = {
    522: ({"PodsReady": "False", "Admitted": "False"}, TaskState.WAITING),
    2291: ({"PodsReady": "False", "QuotaReserved": "True"}, TaskState.WAITING),
    2362: (
        {
            "PodsReady": "False", "QuotaReserved": "True", "Evicted": "False", "Admitted": "True",
            "Requeued": "False",
        },
        TaskState.RUNNING,
    ),
    6998: ({**ADMITTED, "PodsReady": "True", "Finished": "True"}, TaskState.ENDED),
    8188: ({"Admitted": "False", "Finished": "True"}, TaskState.ENDED),
    11062: ({**RESERVED, "Evicted": "False", "Admitted": "False"}, TaskState.WAITING),
    # The quota of an evicted Workload was not released.
    14811: ({**ADMITTED, "Evicted": "True"}, TaskState.WAITING),
}  # fmt: skip


@pytest.mark.parametrize("number", OBSERVED)
def test_conditions_of_real_clusters_give_the_state_that_their_users_describe(number: int) -> None:
    workload, state = OBSERVED[number]
    # Kueue lifts the suspension of the Job after admission, and sets it again at an eviction.
    job = RESUMED if state is TaskState.RUNNING else SUSPENDED

    assert state_of(job, workload) is state


def test_the_document_has_the_rules_of_the_code() -> None:
    assert rules() == list(kueue_lists.RULES)


def test_only_a_finished_job_or_workload_is_ended() -> None:
    ends = {(kind, name) for kind, name, _, state in rules() if state is TaskState.ENDED}

    assert ends == {("Job", "Complete"), ("Job", "Failed"), ("Workload", "Finished")}


def answer(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((TEXTS / f"kueue-{name}.json").read_text())
    return body


def nonce(letters: str) -> str:
    return letters * 16


def test_lists_of_jobs_and_workloads_become_the_reports_of_the_protocol() -> None:
    look = kueue_lists.tasks(answer("jobs"), answer("workloads"))

    assert look.is_answer
    # The Job without a name; those of other programs and the Workload of a RayJob are passed over.
    assert look.unread == 1
    words = {task.nonce: (task.state, task.word, task.uid) for task in look.tasks}
    assert words == {
        nonce("f6"): (TaskState.WAITING, "Suspended", 1001),
        nonce("a1"): (TaskState.WAITING, "QuotaReserved", 1001),
        nonce("b2"): (TaskState.RUNNING, "Admitted", 1002),
        nonce("c3"): (TaskState.WAITING, "Evicted", 1001),
        nonce("d4"): (TaskState.ENDED, "Complete", 1001),
        nonce("e5"): (TaskState.ENDED, "Failed", 1002),
        # Its Job was deleted, so nothing says as which account it ran.
        nonce("07"): (TaskState.ENDED, "Finished", None),
    }
    assert all(task.ref == f"gpucoord-{task.nonce}" for task in look.tasks)


def test_the_reason_of_a_waiting_task_is_in_the_words_of_kueue() -> None:
    look = kueue_lists.tasks(answer("jobs"), answer("workloads"))

    reasons = {task.nonce: task.reason for task in look.tasks}
    assert reasons[nonce("a1")].endswith("insufficient unused quota for nvidia.com/gpu in flavor"
        " a100, 1 more needed")  # fmt: skip
    assert reasons[nonce("c3")].startswith("Preempted to accommodate a workload")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kind": "Status", "message": "Unauthorized"}, "Unauthorized"),
        ({"metadata": {"continue": "eyJ2"}}, "The WorkloadList is not complete."),
        ({"kind": "PodList"}, "The answer is no WorkloadList."),
        ({"items": None}, "The answer is no WorkloadList."),
    ],
)
def test_an_answer_that_is_no_whole_list_says_nothing_of_any_task(
    changes: dict[str, Any], problem: str
) -> None:
    look = kueue_lists.tasks(answer("jobs"), answer("workloads") | changes)

    assert (look.problem, look.tasks) == (problem, ())


@pytest.mark.parametrize("item", [None, 7, {}, {"metadata": None}, {"metadata": {"name": ["x"]}}])
def test_an_unreadable_object_is_counted_and_stops_no_other(item: object) -> None:
    jobs = answer("jobs")
    before = kueue_lists.tasks(jobs, answer("workloads"))

    look = kueue_lists.tasks(jobs | {"items": [item, *jobs["items"]]}, answer("workloads"))

    assert look.tasks == before.tasks
    assert look.unread == before.unread + 1


@pytest.mark.parametrize("uid", [True, -1, "1001", 2**40])
def test_an_account_that_is_no_uid_is_unknown(uid: object) -> None:
    jobs = answer("jobs")
    jobs["items"][0]["spec"]["template"]["spec"]["securityContext"]["runAsUser"] = uid

    assert kueue_lists.tasks(jobs, answer("workloads")).tasks[0].uid is None
