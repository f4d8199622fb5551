"""One broken item changes nothing for the others: charges of GPUs, incident rules, incidents."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from monitor.facts.incidents import CPU_HOG, IDLE_HELD, MEMORY_HOG, SUSTAINED
from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents.policy.findings import Finding, RuleInput
from monitor.incidents.rules import evaluate, processes
from monitor.incidents.rules.evaluate import IncidentPolicies, Rule
from monitor.incidents.step import IncidentStep
from monitor.models import Incident, ItemFault
from monitor.runtime.rows.item_isolation import ItemIsolation
from scheduler.limits.quotas.policy import charging
from scheduler.limits.quotas.step import Charging
from scheduler.models import UsageShare
from tests.builders import NOW, gpu, gpu_uuid, process, snapshot

pytestmark = pytest.mark.django_db
# A module, its rule, and the name of the rule.
RULES = (
    (processes, "sustained", SUSTAINED),
    (processes, "fair_share", "fair_share"),
    (processes, "moving", "moving use"),
    (processes, "memory_hog", "memory_hog"),
    (processes, "leaks", "leak"),
    (processes, "idle_held", IDLE_HELD),
    (processes, "orphaned", "orphaned"),
    (evaluate, "claimed_empty", "claimed_empty"),
    (evaluate, "unused_gpus", "unused_gpus"),
    (evaluate, "over_memory", "over_memory"),
    (evaluate, "extra_gpus", "extra_gpus"),
    (evaluate, "unclaimed", "unclaimed"),
)
RULE_INPUT = RuleInput(t=0.0, gpus=(), jobs={}, empty={}, series={})


def at(minute: float) -> datetime:
    return NOW + timedelta(minutes=minute)


def _fail(*_args: Any, **_named: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_gpu_whose_charges_fail_charges_the_users_of_the_others(
    broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = ["alice", "bob", "carol"]
    used = [process(number + 1, on=number, user=user) for number, user in enumerate(users)]
    real = charging.charges_on

    def odd(gpu: Any, *rest: Any) -> Any:
        return _fail() if gpu.uuid == gpu_uuid(broken) else real(gpu, *rest)

    monkeypatch.setattr(charging, "charges_on", odd)
    for second in (0, 5, 10):
        now = NOW + timedelta(seconds=second)
        Charging("gpubox", "UTC").judge(snapshot(3, used, at=now), now)

    del users[broken]
    assert sorted(UsageShare.objects.values_list("owner", flat=True)) == users
    assert [fault.item for fault in ItemFault.objects.all()] == [f"charges of GPU {broken}"]


def _finding(rule: str) -> Finding:
    return Finding(rule=rule, key=f"key of {rule}", since_t=0.0, gpu=gpu(0), user="alice")


@pytest.mark.parametrize("broken", [rule for _, _, rule in RULES])
def test_a_rule_that_fails_changes_no_finding_of_another_rule(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, function, rule in RULES:
        action = _fail if rule == broken else lambda *_, rule=rule: iter([_finding(rule)])
        monkeypatch.setattr(module, function, action)
    isolation = ItemIsolation("gpubox", "incidents", reports=False)

    def run(rule: str, action: Rule) -> list[Finding] | None:
        done = isolation.each([rule], str, lambda _: list(action()), NOW)
        return done[0][1] if done else None

    findings, failed = evaluate.findings(RULE_INPUT, IncidentPolicies(), run=run)

    # These two complete what `sustained` finds.
    expected = {broken} | ({evaluate.MOVING, MEMORY_HOG} if broken == SUSTAINED else set())
    assert failed == expected
    assert {finding.rule for finding in findings} == {rule for _, _, rule in RULES} - expected


def _judge(step: IncidentStep, minutes: range, *users: str) -> None:
    """Each of these users computes on a GPU of their own."""
    for minute in minutes:
        there = [
            process(number + 1, on=number, user=user, sm_pct=95.0)
            for number, user in enumerate(users)
        ]
        step.judge(snapshot(2, there, at=at(minute), seq=minute), (), at(minute))


def _open() -> list[tuple[str, str]]:
    rows = Incident.objects.filter(closed_at=None).order_by("user")
    return list(rows.values_list("rule", "user"))


@pytest.fixture
def step() -> IncidentStep:
    """Alice and Bob have open incidents."""
    snapshots.record(snapshot(2, at=NOW))
    step = IncidentStep("gpubox", gap_s=120)
    _judge(step, range(1, 13), "alice", "bob")
    assert _open() == [(SUSTAINED, "alice"), (SUSTAINED, "bob")]
    return step


def test_incidents_of_a_rule_that_fails_stay_open(
    step: IncidentStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "sustained", _fail)

    _judge(step, range(13, 25), "alice", "bob")

    assert _open() == [(SUSTAINED, "alice"), (SUSTAINED, "bob")]
    assert "rule sustained" in {fault.item for fault in ItemFault.objects.all()}


def test_a_cpu_scan_that_fails_keeps_no_gpu_rule_from_judging(
    step: IncidentStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IncidentStep, "_cpu_hogs", _fail)

    _judge(step, range(13, 30))

    assert _open() == []
    assert [fault.item for fault in ItemFault.objects.all()] == [f"rule {CPU_HOG}"]


@pytest.mark.parametrize("spans", [[1], "odd", 5], ids=str)
def test_an_incident_whose_row_is_broken_keeps_no_other_from_closing(
    step: IncidentStep, spans: Any
) -> None:
    Incident.objects.filter(user="alice").update(hog_spans=spans)

    _judge(step, range(13, 30))

    assert _open() == [(SUSTAINED, "alice")]
