"""Policy: thresholds for the presence of interactive users on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from monitor.facts.thresholds import threshold

# Desktop components of the usual systems.
COMPOSITORS = (
    "Hyprland", "Xorg", "Xwayland", "cinnamon", "cosmic-comp", "gdm-x-session", "gnome-shell",
    "kwin_wayland", "kwin_x11", "labwc", "marco", "mutter", "plasmashell", "sway", "weston",
    "xfwm4",
)  # fmt: skip


# Use of a GPU in % by programs outside the queue: present above the first, absent below the second.
ENTER_USE_PCT, LEAVE_USE_PCT = 50.0, 30.0
# A user is absent below this part of the memory that shows presence.
LEAVE_MEMORY_PART = 0.5
# Seconds for which a user must be present before jobs yield, in two consecutive readings.
LATCH_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PresencePolicy:
    """Interactive users of a GPU, and how jobs yield to them."""

    # fmt: off
    enabled: bool = threshold(False, "Yield to interactive users",
        "Jobs leave a GPU while a program outside the queue uses it. Other GPUs are not affected.")
    enter_memory_mib: float = threshold(256.0, "Present above this memory", unit="MiB", ge=1,
        help="Memory held by programs outside the queue, without the desktop's own memory. "
             "The user is absent below half of it. GPU use above 50 % shows presence too.")
    enter_compute_memory_mib: float = threshold(64.0,
        "Present above this memory of compute processes", unit="MiB", ge=1,
        help="Memory held by users' compute processes outside the queue. The user is absent below "
             "half of it.")
    clear_s: float = threshold(60.0, "Delay before jobs return", unit="s", ge=0, le=3600,
        help="The user must be absent for this time.")
    yields: Literal["all", "preemptible", "none"] = threshold("preemptible", "Jobs that yield",
        "all = every job on the GPU; preemptible = only preemptible jobs; none = running jobs "
        "stay and only new jobs avoid the GPU.")
    max_grace_s: float = threshold(2.0, "Maximum grace period", unit="s", ge=0, le=600,
        help="A yielding job is killed after this time, even if it requested a longer grace "
             "period. With the default values the GPU is free within 6 s.")
    exclusive: tuple[str, ...] = threshold((), "Programs that always count",
        "Program names, such as a game or a renderer. They count as present at any use.")
    ignored: tuple[str, ...] = threshold(COMPOSITORS, "Programs that never count",
        "Program names, such as desktop components.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        if both := sorted(set(self.exclusive) & set(self.ignored)):
            return {"exclusive": f"{both[0]} is in both lists of programs"}
        return {}
