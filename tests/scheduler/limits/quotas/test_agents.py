"""Agents submit within their limits, are shown as such, and one switch stops them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client
from django.utils import timezone

from monitor.facts.accounts import TokenScope
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Agent, ApiToken
from monitor.owners import rows as tokens
from monitor.pages import cards
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.jobs.rows import durations
from scheduler.limits.quotas import rows
from scheduler.limits.quotas.policy.quotas import AgentJob, AgentLimits, AgentUse, bounded, waits
from scheduler.limits.quotas.policy.quotas import agent_refusals as refusals
from scheduler.models import Attempt, Job
from tests import builders, jobs_made
from tests.builders import NOW

LIMITS = AgentLimits(id=1, name="helper", running_jobs=2, gpu_minutes=120)
HOUR = timedelta(hours=1)
SignIn = Callable[[User], Client]


def job(number: int, gpus: int = 1, limit: timedelta = HOUR, priority: int = 1) -> AgentJob:
    return AgentJob(id=number, agent=1, priority=priority, gpus=gpus, time_limit=limit)


def codes(*jobs: AgentJob, **use: Any) -> dict[int, str]:
    result = waits(jobs, {1: LIMITS}, {1: AgentUse(**use)})
    return {number: blockers[0].code.value for number, blockers in result.items()}


def test_its_jobs_are_preemptible_short_and_of_low_priority() -> None:
    new = bounded(NewJob(command="x", priority_chosen=False), LIMITS)

    assert (new.agent, new.priority, new.time_limit) == (1, 1, HOUR)
    assert new.yield_options.preemptible


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (NewJob(command="x", priority=4), "priority"),
        (NewJob(command="x", interactive=True), "interactive"),
        (NewJob(command="x", requirement=Requirement(gpus=3)), "time_limit"),
        (NewJob(command="x", time_limit=timedelta(hours=3)), "time_limit"),
    ],
)
def test_a_job_beyond_its_limits_is_refused(new: NewJob, field: str) -> None:
    assert [refusal.field for refusal in refusals(bounded(new, LIMITS), LIMITS)] == [field]


def test_a_job_within_its_limits_is_not_refused() -> None:
    new = NewJob(command="x", requirement=Requirement(gpus=2), priority=3)

    assert refusals(bounded(new, LIMITS), LIMITS) == []


def test_only_so_many_run_at_a_time() -> None:
    assert codes(job(1), job(2), job(3)) == {3: "AgentMaxJobs"}
    assert codes(job(1), job(2), job(3, priority=3)) == {2: "AgentMaxJobs"}
    assert codes(job(4), running=2) == {4: "AgentMaxJobs"}


def test_the_minutes_of_running_jobs_count_before_they_are_spent() -> None:
    assert codes(job(4), running=1, spent=10, committed=50) == {}
    assert codes(job(4), running=1, spent=11, committed=50) == {4: "AgentBudget"}
    assert codes(job(4), job(5, limit=HOUR / 2), spent=90) == {4: "AgentBudget"}
    assert codes(job(4, gpus=0), spent=500) == {}


@pytest.fixture
def agent(alice: User) -> Agent:
    return Agent.objects.create(user=alice, name="helper", created_at=NOW, running_jobs=2)


class Rest:
    """REST with the agent's token."""

    def __init__(self, agent: Agent) -> None:
        scopes = (TokenScope.READ, TokenScope.SUBMIT)
        _, text = tokens.create_token(agent.user, timezone.now(), scopes=scopes, agent=agent)
        self._client = Client(headers={"authorization": f"Bearer {text}"})

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        return self._client.generic(method, path, body or "", "application/json")

    def submit(self, body: str = '{"command": "true", "gpus": 0}') -> Any:
        return self("POST", "/api/jobs/", body)


@pytest.fixture
def rest(agent: Agent) -> Rest:
    return Rest(agent)


def test_a_submission_is_bounded_and_says_whose_agent_it_is(rest: Rest, agent: Agent) -> None:
    number = rest.submit().json()["id"]

    row = Job.objects.get(pk=number)
    assert (row.agent, row.priority, row.preemptible, row.time_limit_s) == (agent, 1, True, 3600)
    assert rest("GET", f"/api/jobs/{number}/").json()["agent"] == "helper"


def test_a_batch_and_a_dry_run_are_bounded_too(rest: Rest) -> None:
    good = '{"command": "true", "gpus": 0}'
    bad = '{"command": "true", "gpus": 0, "priority": 5}'

    assert rest("POST", "/api/jobs/batch/", f'{{"jobs": [{good}, {bad}]}}').status_code == 422
    assert rest("POST", "/api/jobs/what-if/", bad).status_code == 422
    assert rest("POST", "/api/jobs/batch/", f'{{"jobs": [{good}]}}').status_code == 201


def test_its_limits_are_told_with_the_other_mistakes(rest: Rest) -> None:
    answer = rest.submit('{"command": "true", "gpus": 0, "priority": 5, "begin": "?"}')

    assert answer.status_code == 422
    assert {refusal["field"] for refusal in answer.json()["errors"]} == {"priority", "begin"}


def test_it_reads_but_changes_nothing_else(rest: Rest, alice: User) -> None:
    mine = jobs_made.waiting(alice)

    assert rest("GET", f"/api/jobs/{mine.pk}/").status_code == 200
    assert rest("POST", f"/api/jobs/{mine.pk}/cancel/").status_code == 403
    for method, path in (
        ("POST", f"/api/jobs/{mine.pk}/hold/"),
        ("PATCH", f"/api/jobs/{mine.pk}/"),
        ("POST", f"/api/jobs/{mine.pk}/requeue/"),
        ("POST", "/api/batches/"),
        ("POST", "/api/prompts/"),
        ("POST", "/api/windows/"),
    ):
        assert rest(method, path, "{}").status_code == 403, path


def test_it_cancels_its_own_jobs(rest: Rest) -> None:
    number = rest.submit().json()["id"]

    assert rest("POST", f"/api/jobs/{number}/cancel/").json()["cancelled"] is True


def test_waiting_jobs_beyond_the_limit_say_so(rest: Rest) -> None:
    numbers = [rest.submit().json()["id"] for _ in range(4)]

    waiting = durations.with_waits(durations.queue(lambda *_: None), timezone.now())
    blocked = {each.id: each.waits[0].code.value for each in waiting if each.waits}
    assert blocked == dict.fromkeys(numbers[2:], "AgentMaxJobs")


def test_the_use_of_today_comes_from_its_attempts(agent: Agent, alice: User) -> None:
    running = jobs_made.running(alice, agent=agent.pk, time_limit=HOUR)
    Attempt.objects.update(placed_at=NOW, started_at=NOW)
    jobs_made.running(alice, on=(1,))

    use = rows.agent_uses([agent.pk], NOW + timedelta(minutes=10))[agent.pk]
    assert (use.running, round(use.spent), round(use.committed)) == (1, 10, 50)
    jobs_made.end(running)
    use = rows.agent_uses([agent.pk], NOW + timedelta(minutes=10))[agent.pk]
    assert (use.running, round(use.spent), round(use.committed)) == (0, 3, 0)
    assert rows.agent_uses([agent.pk], NOW + timedelta(days=1))[agent.pk].spent == 0


def test_one_switch_stops_it(rest: Rest, agent: Agent, alice: User, as_user: SignIn) -> None:
    number = rest.submit().json()["id"]
    browser = as_user(alice)
    browser.post(f"/account/agents/{agent.pk}/stop/")

    assert Job.objects.get(pk=number).outcome == "cancelled"
    answer = rest.submit()
    assert (answer.status_code, "is stopped" in answer.json()["detail"]) == (403, True)
    assert rest("GET", "/api/gpus/").status_code == 403
    browser.post(f"/account/agents/{agent.pk}/resume/")
    assert rest.submit().status_code == 201


def test_a_user_makes_and_removes_an_agent(alice: User, as_user: SignIn) -> None:
    browser = as_user(alice)
    form = {"name": "coder", "running_jobs": "3", "gpu_minutes": "60", "days": "30"}
    page = browser.post("/account/agents/", form).content.decode()

    made = Agent.objects.get()
    assert (made.name, made.running_jobs, made.gpu_minutes) == ("coder", 3, 60)
    assert "gpc_" in page
    assert "coder" in browser.get("/account/").content.decode()
    assert browser.post("/account/agents/", form).status_code == 422
    assert browser.post("/account/agents/", form | {"running_jobs": "0"}).status_code == 422
    browser.post(f"/account/agents/{made.pk}/remove/")
    assert (Agent.objects.count(), ApiToken.objects.count()) == (0, 0)


def test_only_its_user_stops_an_agent(agent: Agent, bob: User, as_user: SignIn) -> None:
    assert as_user(bob).post(f"/account/agents/{agent.pk}/stop/").status_code == 404


def test_the_page_of_its_job_has_the_switch_for_the_owner_and_operators(
    rest: Rest, agent: Agent, alice: User, bob: User, root: User, as_user: SignIn
) -> None:
    number = rest.submit().json()["id"]
    switch = f'action="/account/agents/{agent.pk}/stop/"'

    assert switch not in as_user(bob).get(f"/jobs/{number}/").content.decode()
    for user in (alice, root):
        assert switch in as_user(user).get(f"/jobs/{number}/").content.decode()
    as_user(root).post(f"/account/agents/{agent.pk}/stop/")
    assert Job.objects.get(pk=number).outcome == "cancelled"
    assert switch not in as_user(alice).get(f"/jobs/{number}/").content.decode()


def test_pages_name_the_agent(rest: Rest, alice: User, as_user: SignIn) -> None:
    number = rest.submit().json()["id"]
    browser = as_user(alice)

    for path in ("/jobs/", f"/jobs/{number}/"):
        assert "alice’s agent" in browser.get(path).content.decode(), path


def test_the_card_of_its_gpu_names_the_agent(agent: Agent, alice: User) -> None:
    job = jobs_made.running(alice, agent=agent.pk)
    process = builders.process(job_ref=str(job.pk), job_owner="alice")
    (card,) = cards.cards([builders.snapshot(1, [process])], tasks=snapshots.gpu_tasks())

    assert (card.rows[0].agent, card.tasks[0].submitter) == ("helper", "alice’s agent")
    html = render_to_string("monitor/_card.html", {"card": card})
    assert 'title="Agent helper">alice’s agent</a>' in html


def test_the_planner_serves_other_jobs_first(rest: Rest) -> None:
    body = '{"command": "true", "gpus": 0, "priority": 3}'
    number = rest.submit(body).json()["id"]

    (queued,) = durations.queue(lambda *_: None)
    assert (queued.id, queued.priority) == (number, 1)
    assert Job.objects.get(pk=number).priority == 3
