"""Prompts of the queue are answered once, whoever is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.pace import Stopwatch
from tests.processes.model_stand import ModelStand, model_stand, stats
from tests.processes.service import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared_stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelStand]:
    with model_stand(tmp_path_factory.mktemp("models") / "data") as made:
        made.start_endpoint()
        yield made


@pytest.fixture
def stand(shared_stand: ModelStand) -> Iterator[ModelStand]:
    yield shared_stand
    shared_stand.reset()


def statuses(stand: ModelStand) -> list[str]:
    return stand.column("prompt", "status")


def wait_for(stand: ModelStand, *wanted: str) -> None:
    wait_until(lambda: statuses(stand) == list(wanted), 30, f"{wanted}, not {statuses(stand)}")


def test_a_prompt_is_answered_with_its_tokens(stand: ModelStand) -> None:
    stand.serve("--tokens", "3")
    stand.start_endpoint()
    stand.add_prompt()
    wait_for(stand, "complete")

    assert stand.column("prompt", "result") == ["the quick brown "]
    assert stand.sql("SELECT prompt_tokens, completion_tokens FROM scheduler_prompt") == [(7, 3)]


def test_a_prompt_whose_instance_crashes_is_answered_by_another(stand: ModelStand) -> None:
    stand.serve("--fault", "crash_within", "--tokens", "4")
    stand.serve("--tokens", "2")
    stand.start_endpoint()
    stand.add_prompt()
    wait_for(stand, "complete")

    assert stand.column("prompt", "attempt") == [2]
    assert stand.column("prompt", "result") == ["the quick "]


def test_a_prompt_that_every_instance_fails_with_fails_with_the_reason(stand: ModelStand) -> None:
    stand.serve("--fault", "busy")
    stand.start_endpoint()
    stand.add_prompt()
    wait_for(stand, "failed")

    assert stand.column("prompt", "attempt") == [3]
    assert stand.column("prompt", "error") == [
        "The instance failed: its server answered 503: loading model (3 attempts)"
    ]


def test_a_refused_prompt_fails_at_once(stand: ModelStand) -> None:
    stand.serve("--fault", "refuse")
    stand.start_endpoint()
    stand.add_prompt()
    wait_for(stand, "failed")

    assert stand.column("prompt", "attempt") == [1]
    assert stand.column("prompt", "error") == [
        "The model's server refused it (400): the prompt is too long"
    ]


def test_a_waiting_prompt_says_what_it_waits_for(stand: ModelStand) -> None:
    stand.add_instance(1, "booting", ready_in_s=85)
    stand.start_endpoint()
    stand.add_prompt()

    wait_until(
        lambda: stand.column("prompt", "waits_for")[0].startswith("model boots, ready in ~"),
        20,
        "the reason is stored",
    )


def test_a_cancelled_prompt_ends_its_generation(stand: ModelStand) -> None:
    port = stand.serve("--tokens", "1000", "--interval-s", "0.05")
    stand.start_endpoint()
    stand.add_prompt()
    wait_for(stand, "running")
    stand.sql("UPDATE scheduler_prompt SET status = 'failed', error = 'Cancelled by ada.'")

    wait_until(lambda: stats(port).get("left") == 1, 20, "the server sees that it has gone")
    assert stand.column("prompt", "error") == ["Cancelled by ada."]


def test_no_prompt_is_lost_or_answered_twice_while_the_endpoint_is_killed(
    stand: ModelStand,
) -> None:
    """Each change of a prompt to `complete` is counted by the database itself."""
    stand.sql("CREATE TABLE answers (prompt INTEGER)")
    stand.sql(
        "CREATE TRIGGER answered AFTER UPDATE OF status ON scheduler_prompt"
        " WHEN NEW.status = 'complete' BEGIN INSERT INTO answers VALUES (NEW.id); END"
    )
    stand.serve("--tokens", "10", "--interval-s", "0.02")
    numbers = [stand.add_prompt() for _ in range(40)]
    watch, chance = Stopwatch(), random.Random(13)
    for _ in range(4):
        stand.start_endpoint()
        pause = chance.uniform(0.2, 1.0)
        done = len(stand.sql("SELECT * FROM answers"))
        wait_until(
            lambda enough=done + int(10 * pause): (
                len(stand.sql("SELECT * FROM answers")) >= min(40, enough)
            ),
            20,
            "some more answers",
        )
        stand.kill_endpoint()
        # The attempts of kills are not failures of the prompt in this test.
        stand.sql("UPDATE scheduler_prompt SET attempt = 1 WHERE attempt > 1")
    stand.start_endpoint()
    wait_until(lambda: set(statuses(stand)) == {"complete"}, 30, "all answers")

    assert not watch.has_run(170)
    assert sorted(row[0] for row in stand.sql("SELECT prompt FROM answers")) == numbers
