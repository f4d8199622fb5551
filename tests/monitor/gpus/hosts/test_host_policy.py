"""Whether a host may join, and whether contact with it is lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from monitor.facts.readings import HostFact, HostState, JoiningHost
from monitor.gpus.policy import hosts as policy
from tests.builders import NOW

NEW = JoiningHost(
    name="west", instance="w", key_mark="key", boot_id="b", version="1.1", address="",
    profile="server",
)  # fmt: skip
SILENT = NOW - timedelta(seconds=16)


def host(name: str = "east", **changes: Any) -> HostFact:
    return HostFact(name=name, **{"instance": name[0], "version": "1.1", "seen_at": NOW} | changes)


def problem(*hosts: HostFact, has_token: bool = False, shared: bool = True) -> str | None:
    return policy.join_problem(NEW, hosts, NOW, has_token=has_token, shared=shared)


def test_the_first_host_needs_no_token() -> None:
    assert problem() is None


def test_a_further_host_needs_a_token() -> None:
    assert "is not registered in this database" in (problem(host()) or "")
    assert problem(host(), has_token=True) is None


def test_a_registered_host_starts_again_without_a_token() -> None:
    assert problem(host(), host("west")) is None


def test_a_host_from_before_the_registry_is_adopted() -> None:
    assert problem(host(), host("west", instance="")) is None


def test_another_machine_with_the_same_name_is_refused() -> None:
    gone = host("west", instance="other", seen_at=SILENT)
    said = problem(gone) or ""

    assert "Another machine or data folder is registered as west" in said
    assert "GPUCOORD_NODE" in said
    assert problem(gone, has_token=True) is None


def test_a_host_that_runs_is_not_replaced_even_with_a_token() -> None:
    said = problem(host("west", instance="other"), has_token=True) or ""

    assert "gpucoord runs as west on another machine or data folder" in said
    assert "stop it there and wait 15 seconds" in said


def test_a_host_with_another_secret_key_is_refused_while_others_run() -> None:
    other = host(key_mark="other key")

    assert "The secret_key in the data folder differs from that of east." in (
        problem(other, host("west")) or ""
    )
    assert problem(host(key_mark="key"), host("west")) is None
    # Of a host from before digests were stored.
    assert problem(host(key_mark=""), host("west")) is None
    # All hosts were stopped for a new key.
    assert problem(replace(other, seen_at=SILENT), host("west")) is None
    assert problem(other, shared=False) is None


def test_a_version_that_does_not_fit_is_refused_with_both_versions() -> None:
    said = problem(host(version="1.0"), host("west")) or ""

    assert "This is gpucoord 1.1, and the database is in use by 1.0 on east." in said


def test_a_silent_host_of_another_version_stops_no_upgrade() -> None:
    old = host(version="1.0", seen_at=SILENT)

    assert problem(old, host("west")) is None


def test_a_disabled_host_is_refused_even_with_a_token_and_alone() -> None:
    disabled = host("west", state=HostState.DISABLED, changed_by="olga")

    assert "disabled by olga" in (problem(disabled, has_token=True) or "")
    assert "disabled by olga" in (problem(disabled, shared=False) or "")


def test_a_database_in_a_file_has_one_host_whatever_its_name_was() -> None:
    assert problem(host(version="1.0"), shared=False) is None


def test_contact_is_lost_after_fifteen_seconds_without_a_reading() -> None:
    seen = NOW - timedelta(seconds=15)

    assert policy.silent_since(host(seen_at=seen), NOW) is None
    assert policy.silent_since(host(seen_at=seen), NOW + timedelta(milliseconds=1)) == seen
    assert policy.silent_since(host(seen_at=None), NOW) is None


def test_only_active_hosts_take_jobs() -> None:
    assert host().takes_jobs
    assert not replace(host(), state=HostState.DRAINED).takes_jobs
    assert not replace(host(), state=HostState.DISABLED).takes_jobs


def test_files_of_a_host_without_an_address_are_never_just_missing() -> None:
    with_address = policy.elsewhere("west", "http://west:8000/", "/jobs/7/")
    without = policy.elsewhere("west", "", "/jobs/7/")

    assert "Read them at http://west:8000/jobs/7/." in with_address
    assert "on the host west, which serves no pages to other hosts" in without
    assert "/jobs/7/" not in without
