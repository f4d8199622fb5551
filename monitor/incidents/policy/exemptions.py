"""Processes exempt from incident rules: system processes and operator exemptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from monitor.facts.accounts import is_person
from monitor.facts.readings import ProcessReading
from monitor.incidents.policy.thresholds import GpuTimePolicy

USER, PROGRAM, CONTAINER = "user", "program", "container"
# Desktop and driver processes: they belong to no user, or to the interactive user.
SYSTEM_PROGRAMS = (
    "Xorg",
    "Xwayland",
    "gnome-shell",
    "kwin*",
    "plasmashell",
    "mutter*",
    "sddm*",
    "gdm*",
    "lightdm*",
    "nvidia-*",
    "nv-hostengine",
    "dcgm*",
)


@dataclass(frozen=True, slots=True)
class ExemptionRule:
    """One exemption. `rule` "" = all rules; `name` may contain *."""

    scope: str
    name: str
    rule: str = ""

    def fits(self, user: str | None, program: str | None, container: str | None) -> bool:
        value = {USER: user, PROGRAM: program, CONTAINER: container}.get(self.scope)
        return bool(value) and fnmatchcase(value or "", self.name)


def exemptions_of_policy(policy: GpuTimePolicy) -> tuple[ExemptionRule, ...]:
    """The exemptions in the thresholds."""
    named = (
        (USER, policy.exempt_users),
        (PROGRAM, policy.exempt_programs),
        (CONTAINER, policy.exempt_containers),
    )
    return tuple(ExemptionRule(scope, name) for scope, names in named for name in names)


def is_system(process: ProcessReading, policy: GpuTimePolicy) -> bool:
    """Whether the process belongs to a desktop, the driver or a service account.

    Any user can give a program such a name, so a user's process that only computes does not count.
    """
    program = process.program or ""
    computes = "G" not in process.kinds
    is_persons = process.uid is not None and is_person(process.uid)
    if any(fnmatchcase(program, name) for name in SYSTEM_PROGRAMS):
        return not (is_persons and computes)
    service = process.uid is not None and process.uid != 0 and not is_person(process.uid)
    return policy.spare_service_accounts and service and process.container is None


def is_exempt(
    process: ProcessReading, policy: GpuTimePolicy, exempt: Sequence[ExemptionRule]
) -> bool:
    """Whether the process is exempt from all rules."""
    if is_system(process, policy):
        return True
    return any(not e.rule and _fits(e, process) for e in exempt)


def is_exempt_from(
    rule: str,
    user: str | None,
    program: str | None,
    container: str | None,
    exempt: Sequence[ExemptionRule],
) -> bool:
    """Whether this user, program or container is exempt from the rule."""
    return any(e.rule in ("", rule) and e.fits(user, program, container) for e in exempt)


def _fits(exempt: ExemptionRule, process: ProcessReading) -> bool:
    """Both the owner of the job and the account of the process may be exempt."""
    return any(
        exempt.fits(user, process.program, process.container)
        for user in {process.user, process.job_owner}
    )
