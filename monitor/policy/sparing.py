"""Whom no rule accuses: the system's own, and who is exempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from monitor.policy.hog_policies import HogPolicy
from monitor.policy.owners import FIRST_PERSON
from monitor.readings import ProcessReading

USER, PROGRAM, CONTAINER = "user", "program", "container"


@dataclass(frozen=True, slots=True)
class Exempt:
    """One exemption; `rule` "" = of all rules. `name` may hold * for anything."""

    scope: str
    name: str
    rule: str = ""

    def fits(self, user: str | None, program: str | None, container: str | None) -> bool:
        value = {USER: user, PROGRAM: program, CONTAINER: container}.get(self.scope)
        return bool(value) and fnmatchcase(value or "", self.name)


def exempt_by(policy: HogPolicy) -> tuple[Exempt, ...]:
    """Those that the policy names."""
    named = (
        (USER, policy.exempt_users),
        (PROGRAM, policy.exempt_programs),
        (CONTAINER, policy.exempt_containers),
    )
    return tuple(Exempt(scope, name) for scope, names in named for name in names)


def is_system(process: ProcessReading, policy: HogPolicy) -> bool:
    """A part of the system: a desktop, the driver's own, or a service account's.

    Anybody can give a program such a name: a person's that only computes is none of them.
    """
    program = process.program or ""
    computes = "G" not in process.kinds
    is_persons = process.uid is not None and process.uid >= FIRST_PERSON
    if any(fnmatchcase(program, name) for name in policy.system_programs):
        return not (is_persons and computes)
    service = process.uid is not None and 0 < process.uid < FIRST_PERSON
    return policy.spare_service_accounts and service and process.container is None


def spared(process: ProcessReading, policy: HogPolicy, exempt: Sequence[Exempt]) -> bool:
    """Whether no rule at all may accuse it."""
    if is_system(process, policy):
        return True
    return any(not e.rule and _fits(e, process) for e in exempt)


def spared_from(
    rule: str,
    user: str | None,
    program: str | None,
    container: str | None,
    exempt: Sequence[Exempt],
) -> bool:
    """Whether this rule may not accuse them."""
    return any(e.rule in ("", rule) and e.fits(user, program, container) for e in exempt)


def _fits(exempt: Exempt, process: ProcessReading) -> bool:
    """A person is exempt by either name: whose job it is, or whose account."""
    return any(
        exempt.fits(user, process.program, process.container)
        for user in {process.user, process.job_owner}
    )
