from __future__ import annotations

import pytest

from scheduler.facts.jobs import JobNotice, NoticeKind, Outcome, parse_kinds
from scheduler.jobs.notifications.policy import chosen, kinds_of, letters

FINISHED, FAILED = NoticeKind.FINISHED, NoticeKind.FAILED


def notice(job_id: int = 7, **changes: object) -> JobNotice:
    facts: dict[str, object] = {
        "kind": FINISHED, "job_id": job_id, "name": "train", "owner": "alice",
        "text": f"Job {job_id} (train) succeeded", "event": 100 + job_id,
    }  # fmt: skip
    return JobNotice(**(facts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST])
def test_a_job_that_ends_without_success_has_failed_and_has_finished(outcome: Outcome) -> None:
    assert kinds_of("JOB_FINISHED", outcome, "", "alice") == [FAILED, FINISHED]


def test_a_successful_job_has_finished_only() -> None:
    assert kinds_of("JOB_FINISHED", Outcome.SUCCEEDED, "", "alice") == [FINISHED]


def test_who_cancels_an_own_job_is_not_told() -> None:
    assert kinds_of("JOB_FINISHED", Outcome.CANCELLED, "alice", "alice") == []


def test_a_user_whose_job_an_operator_cancels_is_told() -> None:
    assert kinds_of("JOB_FINISHED", Outcome.CANCELLED, "root", "alice") == [FINISHED]


@pytest.mark.parametrize("event", ["JOB_PREEMPTED", "JOB_EVICTED"])
def test_an_interrupted_job_is_told_as_preempted(event: str) -> None:
    assert kinds_of(event, "", "", "alice") == [NoticeKind.PREEMPTED]


def test_an_event_is_told_once_under_the_most_specific_kind_that_is_wanted() -> None:
    assert chosen([FAILED, FINISHED], {"failed", "finished"}) is FAILED
    assert chosen([FAILED, FINISHED], {"finished"}) is FINISHED
    assert chosen([FAILED, FINISHED], {"preempted"}) is None


def test_a_message_names_the_job_and_links_its_page() -> None:
    (letter,) = letters([notice()], "https://gpus.example.org/")

    assert letter.title == "Job 7 (train) ended"
    assert letter.text == "Job 7 (train) succeeded\nhttps://gpus.example.org/jobs/7/"


def test_many_jobs_that_end_together_share_one_message() -> None:
    (letter,) = letters([notice(n) for n in range(1, 41)], "")

    assert letter.title == "40 jobs ended"
    assert letter.text.splitlines()[-1] == "and 20 more"


def test_messages_to_different_users_stay_apart() -> None:
    made = letters([notice(n, owner=f"user{n % 2}") for n in range(10)], "")

    assert sorted(letter.owner for letter in made) == ["user0", "user1"]


def test_kinds_are_read_from_text() -> None:
    assert parse_kinds("finished, starts-soon") == (FINISHED, NoticeKind.STARTS_SOON)
    with pytest.raises(ValueError, match="Write one or more of: finished, failed"):
        parse_kinds("always")
