"""Policy: sentences about a user's limits and holds, as that user and others read them."""

from __future__ import annotations

import re

from scheduler.facts.blockers import Blocker


def owners(blocker: Blocker) -> str:
    """The user of the quota or time window, as a possessive."""
    return f"{blocker.user}'s" if blocker.user else "the owner's"


def addressed(text: str, viewer: str) -> str:
    """The sentences as they are shown to this user: "alice's quota" is "your quota" for alice."""
    if not viewer:
        return text
    name = re.escape(viewer)
    text = re.sub(rf"(^|[.!?] ){name}(?= or an operator must)", r"\1You", text)
    text = re.sub(rf"(^|[.!?] ){name} holds it(?= until it is released)", r"\1You hold it", text)
    possessive = rf"{name}'s(?= (?:share|quota|time window|jobs?)\b)"
    text = re.sub(rf"(^|[.!?] ){possessive}", r"\1Your", text)
    return re.sub(rf"(?<![\w@.+-]){possessive}", "your", text)
