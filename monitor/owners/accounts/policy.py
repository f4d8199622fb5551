"""Policy: whether a process of this host may log in as the user of its OS account."""

from __future__ import annotations

import re

from monitor.facts.accounts import FIRST_USER_UID, NOBODY, LocalAccounts, LocalRule, Peer

# The uid of files and processes whose account another user namespace does not know.
OVERFLOW_UID = 65534
OF_A_JOB = "A job that runs as root or as the account of gpucoord can't log in by its uid."
# Names that a user can have here, as Django allows them.
_USER_NAME = re.compile(r"[\w.@+-]{1,150}")


class InvalidRule(ValueError):
    """The setting is neither of its values; the message says which there are."""


def parse_rule(text: str, *, includes_superusers: bool = False) -> LocalRule:
    """`any`, `known`, `own`, `none` or `group:NAME`. Raises InvalidRule."""
    word, colon, group = text.partition(":")
    if colon and word == LocalAccounts.GROUP and group.strip():
        return LocalRule(
            accounts=LocalAccounts.GROUP,
            group=group.strip(),
            includes_superusers=includes_superusers,
        )
    if not colon and word in set(LocalAccounts) - {LocalAccounts.GROUP}:
        return LocalRule(accounts=LocalAccounts(word), includes_superusers=includes_superusers)
    raise InvalidRule("it must be any, known, own, none or group:NAME")


def default_rule(*, is_root: bool) -> str:
    """Without root all jobs share the service's account, so only that account may log in."""
    return LocalAccounts.ANY if is_root else LocalAccounts.OWN


def refusal(peer: Peer, rule: LocalRule) -> str | None:
    """Why this process may not log in by its account, in a sentence; None: it may.

    With the rule KNOWN, the caller also checks that the account belongs to a user.
    """
    if rule.accounts is LocalAccounts.NONE:
        return "Logging in by OS account is switched off here (local_accounts = none)."
    if peer.problem:
        return f"The process cannot be identified: {peer.problem}."
    if peer.container is not None:
        return f"A process in a container ({peer.container}) can't log in by its uid."
    if not peer.is_in_host_namespace:
        return "A process in another user namespace can't log in by its uid."
    if peer.is_administrator:
        return OF_A_JOB if peer.is_of_job else None
    return _uid_refusal(peer) or _account_refusal(peer, rule)


def _uid_refusal(peer: Peer) -> str | None:
    if peer.uid == OVERFLOW_UID or peer.account == NOBODY:
        return f"The account {NOBODY} can't log in by its uid."
    if peer.uid < FIRST_USER_UID:
        return f"uid {peer.uid} is the account of a service; only uids from 1000 can log in."
    if peer.account is None:
        return f"uid {peer.uid} has no account on this host."
    if not _USER_NAME.fullmatch(peer.account):
        return f"The account name {peer.account[:150]!r} can't be a user name here."
    return None


def _account_refusal(peer: Peer, rule: LocalRule) -> str | None:
    if rule.accounts is LocalAccounts.GROUP and rule.group not in peer.groups:
        return f"Only members of the group {rule.group} can log in by their account."
    if rule.accounts is LocalAccounts.OWN:
        return (
            "gpucoord runs without root here, so only its own account logs in by its uid"
            " (local_accounts = own). Use an API token, or ask an operator."
        )
    return None
