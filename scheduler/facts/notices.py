"""Facts: what users can be notified of about their jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Limits of a user's settings.
LONGEST_ADDRESS = 2000
MOST_FAILURES, LONGEST_QUICK_S = 100, 86_400


class NoticeKind(StrEnum):
    """FINISHED: it has ended, however. FAILED: it ended without success. STARTS_SOON: by the

    predicted start. A cancelled job gives no notice to the user who cancelled it.
    """

    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"
    STARTS_SOON = "starts_soon"


NOTICE_WORDS: dict[NoticeKind, str] = {
    NoticeKind.FINISHED: "A job has ended",
    NoticeKind.FAILED: "A job has failed, timed out or was lost",
    NoticeKind.PREEMPTED: "A job was interrupted and waits again",
    NoticeKind.STARTS_SOON: "A job is expected to start soon",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNotice:
    """Something that happened to a job. event: the number of its event; 0 = none."""

    kind: NoticeKind
    job_id: int
    name: str
    owner: str
    text: str
    event: int = 0

    @property
    def about(self) -> str:
        """The key under which it is sent once."""
        return f"job:{self.job_id}:{self.kind}:{self.event}"


def parse_kinds(text: str) -> tuple[NoticeKind, ...]:
    """Read "finished, preempted"; raises ValueError with a sentence."""
    words = [word for word in text.replace(",", " ").lower().replace("-", "_").split() if word]
    try:
        return tuple(dict.fromkeys(NoticeKind(word) for word in words))
    except ValueError:
        allowed = ", ".join(NoticeKind)
        raise ValueError(f"Write one or more of: {allowed}.") from None
