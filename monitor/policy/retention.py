"""How long what happened is kept."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """For how many days rows that tell of the past are kept; samples and sums have settings."""

    event_days: float = field(
        default=90,
        metadata={
            "label": "Events",
            "help": "Days for which events are kept.",
            "unit": "d",
            "least": 1,
            "most": 3650,
        },
    )
    state_change_days: float = field(
        default=7,
        metadata={
            "label": "Idle or busy",
            "help": "Days for which a GPU's passing changes of state are kept.",
            "unit": "d",
            "least": 1,
            "most": 3650,
        },
    )
    message_days: float = field(
        default=90,
        metadata={
            "label": "Messages",
            "help": "Days for which it is known which alerts and warnings were sent.",
            "unit": "d",
            "least": 8,
            "most": 3650,
        },
    )
