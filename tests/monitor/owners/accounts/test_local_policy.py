from __future__ import annotations

import pytest
from msgspec.structs import replace

from monitor.facts.accounts import LocalAccounts, LocalRule, Peer
from monitor.owners import policy
from monitor.owners.policy import InvalidRule, parse_rule, refusal

ALICE = Peer(pid=4711, uid=1001, account="alice")
ANY = LocalRule(accounts=LocalAccounts.ANY)


def test_a_process_of_a_person_may_log_in() -> None:
    assert refusal(ALICE, ANY) is None


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        (replace(ALICE, uid=999, account="postgres"), "account of a service"),
        (replace(ALICE, uid=65534, account="nobody"), "nobody"),
        (replace(ALICE, uid=65534, account=None), "nobody"),
        (replace(ALICE, uid=2000, account="nobody"), "nobody"),
        (replace(ALICE, account=None), "no account on this host"),
        (replace(ALICE, account="DOMAIN\\alice"), "can't be a user name"),
        (replace(ALICE, account="alice\n"), "can't be a user name"),
        (replace(ALICE, container="docker 0123456789ab"), "in a container"),
        (replace(ALICE, is_in_host_namespace=False), "another user namespace"),
        (replace(ALICE, is_service=True, is_of_job=True), "A job that runs as root"),
        (replace(ALICE, uid=0, is_of_job=True), "A job that runs as root"),
        (replace(ALICE, uid=0, container="docker 0123456789ab"), "in a container"),
        (replace(ALICE, problem="it has ended"), "can't be identified|cannot be identified"),
    ],
)
def test_other_processes_are_refused_with_the_reason(peer: Peer, words: str) -> None:
    found = refusal(peer, ANY)

    assert found is not None
    assert any(word in found for word in words.split("|"))


def test_a_job_that_runs_as_its_owner_may_log_in_as_them() -> None:
    assert refusal(replace(ALICE, is_of_job=True), ANY) is None


@pytest.mark.parametrize("rule", ["any", "group:gpu", "known", "own"])
@pytest.mark.parametrize(
    "administrator",
    [
        replace(ALICE, uid=0, account="root"),
        replace(ALICE, uid=998, account="gpucoord", is_service=True),
        replace(ALICE, uid=998, account=None, is_service=True),
    ],
)
def test_root_and_the_account_of_the_service_may_log_in(administrator: Peer, rule: str) -> None:
    assert refusal(administrator, parse_rule(rule)) is None


def test_only_members_of_the_group_may_log_in() -> None:
    rule = parse_rule("group:gpu")

    assert refusal(replace(ALICE, groups=frozenset({"alice", "gpu"})), rule) is None
    assert "members of the group gpu" in (refusal(ALICE, rule) or "")


def test_own_means_the_account_of_the_service_alone() -> None:
    rule = parse_rule("own")

    assert refusal(replace(ALICE, is_service=True), rule) is None
    assert "without root" in (refusal(ALICE, rule) or "")


def test_none_refuses_everyone() -> None:
    assert "switched off" in (refusal(ALICE, parse_rule("none")) or "")


@pytest.mark.parametrize("text", ["", "all", "group", "group:", "group: ", "any:x", "known:gpu"])
def test_another_rule_is_an_error(text: str) -> None:
    with pytest.raises(InvalidRule, match="group:NAME"):
        parse_rule(text)


def test_without_root_only_the_own_account_is_the_default() -> None:
    rules = [policy.default_rule(is_root=is_root) for is_root in (True, False)]

    assert rules == ["any", "own"]
