"""The table of states in docs/operators/kubernetes.md, applied to objects of Kubernetes and Kueue.

The objects are built from the documentation of both projects; none was recorded from a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from scheduler.engines.facts import TaskState

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
    return next(
        (state for kind, name, status, state in rules() if of_kind[kind].get(name) == status),
        TaskState.UNKNOWN,
    )


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


def test_only_a_finished_job_or_workload_is_ended() -> None:
    ends = {(kind, name) for kind, name, _, state in rules() if state is TaskState.ENDED}

    assert ends == {("Job", "Complete"), ("Job", "Failed"), ("Workload", "Finished")}
