"""Policy: lists of Jobs (batch/v1) and Workloads (Kueue) -> facts of the engine protocol.

No engine calls this: docs/operators/kubernetes.md describes Kubernetes on paper, and this is its
mapping of states, so that tests can hold it to the protocol.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from scheduler.engines.facts import TaskList, TaskReport, TaskState

MOST_ITEMS, LONGEST_WORD = 200_000, 200
LARGEST_UID = 2**32 - 2
NAME = re.compile(r"gpucoord-([0-9a-f]{8,32})")
# (object, condition, status, state): the first that fits decides.
RULES = (
    ("Job", "Complete", "True", TaskState.ENDED),
    ("Job", "Failed", "True", TaskState.ENDED),
    ("Workload", "Finished", "True", TaskState.ENDED),
    ("Workload", "Evicted", "True", TaskState.WAITING),
    ("Workload", "Admitted", "True", TaskState.RUNNING),
    ("Workload", "QuotaReserved", "True", TaskState.WAITING),
    ("Workload", "QuotaReserved", "False", TaskState.WAITING),
    ("Job", "Suspended", "True", TaskState.WAITING),
)
# Condition by its type.
Conditions = Mapping[str, Mapping[str, Any]]
Answer = Mapping[str, Any]


def tasks(jobs: Answer, workloads: Answer) -> TaskList:
    """Both answers of the API server. An answer that is no whole list says nothing of any task."""
    for answer, kind in ((jobs, "JobList"), (workloads, "WorkloadList")):
        if problem := _problem(answer, kind):
            return TaskList(problem=problem)
    objects: dict[str, dict[str, Mapping[str, Any]]] = {}
    unread = 0
    for kind, answer in (("Job", jobs), ("Workload", workloads)):
        for item in _items(answer):
            name = _job_name(kind, item)
            if name is None:
                unread += 1
            elif NAME.fullmatch(name):
                objects.setdefault(name, {})[kind] = item
    return TaskList(tuple(_report(name, kinds) for name, kinds in objects.items()), unread=unread)


def _problem(answer: Answer, kind: str) -> str:
    if answer.get("kind") == "Status":
        return str(answer.get("message") or answer.get("reason") or "no reason")[:LONGEST_WORD]
    if answer.get("kind") != kind or not isinstance(answer.get("items"), list):
        return f"The answer is no {kind}."
    # A piece of a list: objects that it lacks are not missing.
    if _part(answer, "metadata").get("continue"):
        return f"The {kind} is not complete."
    return ""


def _items(answer: Answer) -> Iterator[Mapping[str, Any]]:
    items = islice(answer["items"], MOST_ITEMS)
    return (item if isinstance(item, Mapping) else {} for item in items)


def _part(item: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A nested object; empty if one of them is missing."""
    for name in names:
        value = item.get(name)
        item = value if isinstance(value, Mapping) else {}
    return item


def _job_name(kind: str, item: Mapping[str, Any]) -> str | None:
    """Of a Job its own, of a Workload that of the Job that owns it; None: it cannot be read."""
    metadata = _part(item, "metadata")
    if kind == "Job":
        name = metadata.get("name")
    else:
        owners = metadata.get("ownerReferences")
        of_jobs = (
            owner.get("name")
            for owner in (owners if isinstance(owners, list) else ())
            if isinstance(owner, Mapping) and owner.get("kind") == "Job"
        )
        # A Workload of another kind of object, such as a RayJob.
        name = next(of_jobs, "" if isinstance(metadata.get("name"), str) else None)
    return name if isinstance(name, str) else None


def _report(name: str, kinds: Mapping[str, Mapping[str, Any]]) -> TaskReport:
    conditions = {kind: _conditions(item) for kind, item in kinds.items()}
    state, word, reason = decide(conditions)
    match = NAME.fullmatch(name)
    context = _part(kinds.get("Job", {}), "spec", "template", "spec", "securityContext")
    uid = context.get("runAsUser")
    is_uid = isinstance(uid, int) and not isinstance(uid, bool) and 0 <= uid <= LARGEST_UID
    return TaskReport(
        ref=name,
        state=state,
        word=word,
        reason=" ".join(reason.split())[:LONGEST_WORD],
        nonce=match[1] if match else "",
        uid=uid if is_uid else None,
    )


def _conditions(item: Mapping[str, Any]) -> Conditions:
    listed = _part(item, "status").get("conditions")
    return {
        str(condition.get("type")): condition
        for condition in (listed if isinstance(listed, list) else ())
        if isinstance(condition, Mapping)
    }


def decide(conditions: Mapping[str, Conditions]) -> tuple[TaskState, str, str]:
    """(state, the condition that decides, its message), by the conditions of Job and Workload."""
    for kind, name, status, state in RULES:
        condition = conditions.get(kind, {}).get(name)
        if condition is not None and condition.get("status") == status:
            return state, name, str(condition.get("message") or "")
    return TaskState.UNKNOWN, "", ""
