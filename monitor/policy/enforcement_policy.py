"""The thresholds of enforcement: off, and a dry run, until operators decide otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.policy.hog_rules import ENFORCEABLE, HOG_RULES, IDLE_HELD


def _minutes(label: str, help: str) -> dict[str, object]:
    more = "Minutes after the first warning reached its owner; 0 = this step is left out."
    return {"label": label, "help": f"{help} {more}", "unit": "min", "least": 0, "most": 10_080}


@dataclass(frozen=True, slots=True)
class EnforcementPolicy:
    """What is done to processes that harm others, and to whose."""

    enabled: bool = field(
        default=False,
        metadata={"label": "Enforce", "help": "Take the steps below. Off: nothing is done."},
    )
    dry_run: bool = field(
        default=True,
        metadata={
            "label": "Dry run",
            "help": "Only say what would be done, in events and on the incident's page.",
        },
    )
    users: tuple[str, ...] = field(
        default=(),
        metadata={
            "label": "Users",
            "help": "Whose processes; * = everybody's. Nobody by default; root's and system"
            " accounts' never.",
        },
    )
    programs: tuple[str, ...] = field(
        default=("*",), metadata={"label": "Programs", "help": "Which programs; python* is fine."}
    )
    containers: tuple[str, ...] = field(
        default=(),
        metadata={
            "label": "Containers",
            "help": "Processes in these containers too; none by default.",
        },
    )
    hosts: tuple[str, ...] = field(
        default=("*",), metadata={"label": "Hosts", "help": "On which hosts."}
    )
    rules: tuple[str, ...] = field(
        default=(*HOG_RULES, IDLE_HELD),
        metadata={
            "label": "Rules",
            "help": "For incidents of these rules.",
            "choices": ENFORCEABLE,
        },
    )
    warn_again_minutes: float = field(
        default=30, metadata=_minutes("Warn again", "A second mail to the owner.")
    )
    renice_minutes: float = field(
        default=45, metadata=_minutes("Lower the priority", "CPU and disk priority of it.")
    )
    limit_minutes: float = field(
        default=60, metadata=_minutes("Limit CPU and memory", "By its cgroup, where that is ours.")
    )
    freeze_minutes: float = field(
        default=0, metadata=_minutes("Stop and go", "It is stopped for a part of the time.")
    )
    terminate_minutes: float = field(default=0, metadata=_minutes("End it", "SIGTERM."))
    kill_minutes: float = field(
        default=0,
        metadata={
            "label": "Kill it",
            "help": "SIGKILL, so many minutes after SIGTERM; 0 = never.",
            "unit": "min",
            "least": 0,
            "most": 10_080,
        },
    )
    grace_minutes: float = field(
        default=10,
        metadata={
            "label": "Time to react",
            "help": "Nothing is done sooner after a warning has reached its owner.",
            "unit": "min",
            "least": 1,
            "most": 10_080,
        },
    )
    nice: int = field(
        default=10,
        metadata={"label": "Nice value", "help": "19 is last.", "least": 1, "most": 19},
    )
    cpu_cores: float = field(
        default=1.0,
        metadata={
            "label": "CPU limit",
            "help": "Cores it may use.",
            "unit": "cores",
            "least": 0.1,
            "most": 1024,
        },
    )
    memory_gib: float = field(
        default=0,
        metadata={"label": "Memory limit", "help": "Of the host; 0 = none.", "unit": "GiB",
                  "least": 0, "most": 65_536},
    )  # fmt: skip
    run_s: float = field(
        default=10,
        metadata={"label": "Goes for", "help": "Seconds at a time.", "unit": "s", "least": 0.1,
                  "most": 600},
    )  # fmt: skip
    stop_s: float = field(
        default=10,
        metadata={"label": "Is stopped for", "help": "Seconds at a time.", "unit": "s",
                  "least": 0.1, "most": 600},
    )  # fmt: skip

    def conflicts(self) -> dict[str, str]:
        """Steps come in their order, or not at all."""
        order = (
            "warn_again_minutes",
            "renice_minutes",
            "limit_minutes",
            "freeze_minutes",
            "terminate_minutes",
        )
        found: dict[str, str] = {}
        before, latest = "", 0.0
        for name in order:
            minutes = getattr(self, name)
            if minutes and minutes < latest:
                found[name] = f"it must not come before {before}"
            if minutes:
                before, latest = name, minutes
        return found
