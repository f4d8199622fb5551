"""Policy: the thresholds by which somebody counts as being at a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# What draws the desktop itself, on the usual systems.
COMPOSITORS = (
    "Hyprland", "Xorg", "Xwayland", "cinnamon", "cosmic-comp", "gdm-x-session", "gnome-shell",
    "kwin_wayland", "kwin_x11", "labwc", "marco", "mutter", "plasmashell", "sway", "weston",
    "xfwm4",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PresencePolicy:
    """When whoever uses a GPU outside the queue has it for themselves, and what jobs do then."""

    enabled: bool = field(
        default=False,
        metadata={
            "label": "Give way to whoever uses a GPU",
            "help": "A program outside the queue makes jobs leave its GPU, and only that one.",
        },
    )
    enter_use_pct: float = field(
        default=50.0,
        metadata={
            "label": "Somebody is there from this use",
            "help": "Of the GPU, by programs outside the queue.",
            "unit": "%",
            "least": 1,
            "most": 100,
        },
    )
    leave_use_pct: float = field(
        default=30.0,
        metadata={
            "label": "Gone below this use",
            "help": "And below that memory.",
            "unit": "%",
            "least": 0,
            "most": 100,
        },
    )
    enter_memory_mib: float = field(
        default=256.0,
        metadata={
            "label": "Somebody is there from this memory",
            "help": "Held by programs outside the queue, above what the desktop itself holds.",
            "unit": "MiB",
            "least": 1,
        },
    )
    leave_memory_mib: float = field(
        default=128.0,
        metadata={
            "label": "Gone below this memory",
            "help": "And below that use.",
            "unit": "MiB",
            "least": 0,
        },
    )
    latch_s: float = field(
        default=2.0,
        metadata={
            "label": "Until jobs yield",
            "help": "So long somebody must be there; new jobs stay away at once.",
            "unit": "s",
            "least": 0,
            "most": 300,
        },
    )
    clear_s: float = field(
        default=60.0,
        metadata={
            "label": "Until work resumes",
            "help": "So long they must be gone.",
            "unit": "s",
            "least": 0,
            "most": 3600,
        },
    )
    yields: Literal["all", "preemptible", "none"] = field(
        default="preemptible",
        metadata={
            "label": "Who yields",
            "help": "all: every job there; preemptible: those that said they can; none: running"
            " jobs stay, only new ones keep away.",
        },
    )
    learn_minutes: float = field(
        default=10.0,
        metadata={
            "label": "Learned as part of the desktop",
            "help": "A program that only draws and stays quiet for so long is counted as always"
            " there, with the memory that it holds.",
            "unit": "min",
            "least": 1,
            "most": 1440,
        },
    )
    exclusive: tuple[str, ...] = field(
        default=(),
        metadata={
            "label": "Programs that count at once",
            "help": "By name, however little they use: a game, a renderer.",
        },
    )
    ignored: tuple[str, ...] = field(
        default=COMPOSITORS,
        metadata={"label": "Programs that never count", "help": "By name: the desktop itself."},
    )

    def conflicts(self) -> dict[str, str]:
        found = {}
        if self.leave_use_pct > self.enter_use_pct:
            found["leave_use_pct"] = "it must not be above what tells that somebody is there"
        if self.leave_memory_mib > self.enter_memory_mib:
            found["leave_memory_mib"] = "it must not be above what tells that somebody is there"
        if both := sorted(set(self.exclusive) & set(self.ignored)):
            found["exclusive"] = f"{both[0]} can't count at once and never"
        return found
