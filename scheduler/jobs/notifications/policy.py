"""Policy: which events of jobs are notices for their owners, and what the messages say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from msgspec import Struct

from monitor.facts.thresholds import threshold
from scheduler.facts.jobs import JobNotice, NoticeKind, Outcome

ENDED = "JOB_FINISHED"
INTERRUPTED = ("JOB_PREEMPTED", "JOB_EVICTED")
EVENT_KINDS = (ENDED, *INTERRUPTED)
FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST, Outcome.SKIPPED)
# More jobs of a user that end at the same time share one message.
MOST_SINGLE = 3
MOST_NAMED = 20
TITLES = {
    NoticeKind.FINISHED: "ended",
    NoticeKind.FAILED: "failed",
    NoticeKind.PREEMPTED: "interrupted",
    NoticeKind.STARTS_SOON: "expected to start soon",
}


# A job starts soon if it is expected to start within this time.
SOON = timedelta(minutes=10)
# Messages to one user in an hour; further ones of this hour are not sent.
MOST_PER_HOUR = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationPolicy:
    """Notifications to users about their own jobs. Each user chooses the events."""

    # fmt: off
    enabled: bool = threshold(True, "Notify users about their jobs",
        "Mails need an alert channel with a mail server that writes to owners.")
    # fmt: on


def kinds_of(event_kind: str, outcome: str, cancelled_by: str, owner: str) -> list[NoticeKind]:
    """The notices that an event of a job can be, the more specific one first."""
    if event_kind in INTERRUPTED:
        return [NoticeKind.PREEMPTED]
    if event_kind != ENDED or (outcome == Outcome.CANCELLED and cancelled_by == owner):
        return []
    failed = [NoticeKind.FAILED] if outcome in FAILURES else []
    return [*failed, NoticeKind.FINISHED]


def chosen(kinds: Sequence[NoticeKind], wanted: Collection[str]) -> NoticeKind | None:
    """The kind under which the owner is told; None = not at all."""
    return next((kind for kind in kinds if kind in wanted), None)


class Letter(Struct, frozen=True):
    """A message about one job, or about several of the same user and kind.

    attachment: as of Message. notices: what it tells.
    """

    owner: str
    about: str
    title: str
    text: str
    attachment: str = ""
    notices: Sequence[JobNotice] = ()


def letters(notices: Iterable[JobNotice], address: str) -> list[Letter]:
    """`address`: of gpucoord, for links; "" = no links."""
    groups: dict[tuple[str, NoticeKind], list[JobNotice]] = {}
    for notice in notices:
        groups.setdefault((notice.owner, notice.kind), []).append(notice)
    made: list[Letter] = []
    for group in groups.values():
        if len(group) > MOST_SINGLE:
            made.append(_together(group, address))
        else:
            made += [_single(notice, address) for notice in group]
    return made


def _single(notice: JobNotice, address: str) -> Letter:
    title = f"Job {notice.job_id} ({notice.name}) {TITLES[notice.kind]}"
    lines = [notice.text, _link(address, f"/jobs/{notice.job_id}/")]
    text = "\n".join(filter(None, lines))
    return Letter(notice.owner, notice.about, title, text, notices=[notice])


def _together(group: Sequence[JobNotice], address: str) -> Letter:
    first = group[0]
    lines = [notice.text for notice in group[:MOST_NAMED]]
    if len(group) > MOST_NAMED:
        lines.append(f"and {len(group) - MOST_NAMED} more")
    lines.append(_link(address, "/jobs/"))
    title = f"{len(group)} jobs {TITLES[first.kind]}"
    text = "\n".join(filter(None, lines))
    return Letter(first.owner, f"{first.about}+{len(group)}", title, text, notices=group)


def _link(address: str, path: str) -> str:
    return address.rstrip("/") + path if address else ""
