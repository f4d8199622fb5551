"""Policy: thresholds for the presence of interactive users on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from monitor.facts.thresholds import percent, threshold

# Desktop components of the usual systems.
COMPOSITORS = (
    "Hyprland", "Xorg", "Xwayland", "cinnamon", "cosmic-comp", "gdm-x-session", "gnome-shell",
    "kwin_wayland", "kwin_x11", "labwc", "marco", "mutter", "plasmashell", "sway", "weston",
    "xfwm4",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PresencePolicy:
    """Interactive users of a GPU, and how jobs yield to them."""

    # fmt: off
    enabled: bool = threshold(False, "Yield to interactive users",
        "Jobs leave a GPU while a program outside the queue uses it. Other GPUs are not affected.")
    enter_use_pct: float = threshold(50.0, "Present above this GPU use", unit="%", ge=1, le=100,
        help="Use by programs outside the queue.")
    leave_use_pct: float = percent(30.0, "Absent below this GPU use",
        "The memory thresholds must also be met.")
    enter_memory_mib: float = threshold(256.0, "Present above this memory", unit="MiB", ge=1,
        help="Memory held by programs outside the queue, without the desktop's own memory.")
    leave_memory_mib: float = threshold(128.0, "Absent below this memory", unit="MiB", ge=0,
        help="The use threshold must also be met.")
    enter_compute_memory_mib: float = threshold(64.0,
        "Present above this memory of compute processes", unit="MiB", ge=1,
        help="Memory held by users' compute processes outside the queue.")
    leave_compute_memory_mib: float = threshold(32.0,
        "Absent below this memory of compute processes", unit="MiB", ge=0,
        help="The other thresholds must also be met, and the video encoder must be idle.")
    latch_s: float = threshold(0.5, "Delay before jobs yield", unit="s", ge=0, le=300,
        help="A user must be present for this time, in two consecutive readings. New jobs avoid "
             "the GPU immediately.")
    clear_s: float = threshold(60.0, "Delay before jobs return", unit="s", ge=0, le=3600,
        help="The user must be absent for this time.")
    yields: Literal["all", "preemptible", "none"] = threshold("preemptible", "Jobs that yield",
        "all = every job on the GPU; preemptible = only preemptible jobs; none = running jobs "
        "stay and only new jobs avoid the GPU.")
    max_grace_s: float = threshold(2.0, "Maximum grace period", unit="s", ge=0, le=600,
        help="A yielding job is killed after this time, even if it requested a longer grace "
             "period. With the default values the GPU is free within 6 s.")
    learn_minutes: float = threshold(10.0, "Add to the desktop baseline after",
        unit="min", ge=1, le=1440,
        help="A graphics program that stays quiet for this time is added to the baseline, with "
             "its memory.")
    exclusive: tuple[str, ...] = threshold((), "Programs that always count",
        "Program names, such as a game or a renderer. They count as present at any use.")
    ignored: tuple[str, ...] = threshold(COMPOSITORS, "Programs that never count",
        "Program names, such as desktop components.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        problems = {}
        if self.leave_use_pct > self.enter_use_pct:
            problems["leave_use_pct"] = "it must not be above the value for presence"
        if self.leave_memory_mib > self.enter_memory_mib:
            problems["leave_memory_mib"] = "it must not be above the value for presence"
        if self.leave_compute_memory_mib > self.enter_compute_memory_mib:
            text = "it must not be above the value for presence"
            problems["leave_compute_memory_mib"] = text
        if both := sorted(set(self.exclusive) & set(self.ignored)):
            problems["exclusive"] = f"{both[0]} is in both lists of programs"
        return problems
