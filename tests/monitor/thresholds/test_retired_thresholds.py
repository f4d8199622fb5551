"""Former thresholds: values of them that are still stored are reported, and have no effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from msgspec.structs import replace

from gpucoord_site.cli import check_machine
from gpucoord_site.config import values
from gpucoord_site.config.settings import load_config
from monitor.facts.thresholds import BY_OPERATORS, IN_SETTINGS, RETIRED, retired, sentence
from monitor.incidents.policy.findings import GpuTimePolicy
from monitor.journal.rows import audit
from monitor.models import PolicyValues
from monitor.thresholds import policy as policies
from monitor.thresholds import rows as thresholds
from tests.builders import NOW

FORMER = "hogs.coverage_pct is no threshold any more: its value {} is ignored."


@pytest.fixture
def former_in_the_file(settings: Any) -> None:
    update = {"policy": {"hogs": {"coverage_pct": 50.0}}}
    settings.CONFIG = replace(settings.CONFIG, **update)


def test_no_threshold_is_former_and_present() -> None:
    for name, kind in values.POLICIES.items():
        assert not RETIRED.get(name, frozenset()) & set(policies.thresholds(kind)), name


def test_each_former_threshold_is_found_in_tables_and_others_are_not() -> None:
    tables = {name: dict.fromkeys(names, 1) for name, names in RETIRED.items()}
    every = {f"{name}.{key}" for name, names in RETIRED.items() for key in names}

    assert set(retired(tables)) == every
    assert retired({"hogs": {"sustained_pct": 90}, "tried": {"coverage_pct": 1}, "host": 5}) == []


def test_several_former_thresholds_are_one_sentence() -> None:
    assert sentence(["hogs.b", "claims.a"], BY_OPERATORS) == (
        "claims.a, hogs.b are no thresholds any more: their values set in the admin are ignored."
    )


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "gpucoord.toml"
    monkeypatch.setenv("GPUCOORD_CONFIG", str(file))
    return file


def test_a_settings_file_with_former_thresholds_is_accepted(file: Path) -> None:
    file.write_text("[policy.cooling]\nwait_s = 9\n\n[policy.hogs]\ncoverage_pct = 'x'\n")

    assert set(load_config().policy) == {"cooling", "hogs"}


def test_a_mistake_beside_a_former_threshold_is_still_one() -> None:
    tables = {"hogs": {"coverage_pct": 50, "sustained_pc": 1}}

    (problem,) = values.policy_problems("server", tables)

    assert problem.startswith("sustained_pc in [policy.hogs] is no threshold; did you mean")


@pytest.mark.django_db
@pytest.mark.usefixtures("former_in_the_file")
def test_values_in_the_file_and_in_the_database_are_reported_and_ignored() -> None:
    PolicyValues.objects.create(name="hogs", values={"coverage_pct": 10.0, "sustained_pct": 90.0})
    PolicyValues.objects.create(name="cooling", values={"wait_s": 9.0})

    assert thresholds.retired_values() == [
        FORMER.format(IN_SETTINGS),
        "cooling.wait_s, hogs.coverage_pct are no thresholds any more: their values set in the "
        "admin are ignored.",
    ]
    assert thresholds.current(GpuTimePolicy) == GpuTimePolicy(sustained_pct=90.0)


@pytest.mark.django_db
def test_a_change_of_the_policy_removes_them_and_the_audit_says_so() -> None:
    PolicyValues.objects.create(name="hogs", values={"coverage_pct": 10.0})

    thresholds.change("hogs", {"sustained_pct": 90.0}, by="root", now=NOW)

    entry = audit.about("policy hogs")[0]
    assert entry.text.endswith("sustained_pct from 80 % to 90 %, coverage_pct removed")
    assert entry.before == {"coverage_pct": 10.0}
    assert thresholds.retired_values() == []


@pytest.mark.django_db
@pytest.mark.usefixtures("data")
def test_operators_can_delete_the_values_of_a_former_policy_and_of_no_other(
    root: User, as_user: Callable[[User], Client]
) -> None:
    PolicyValues.objects.create(name="cooling", values={"wait_s": 9.0})
    PolicyValues.objects.create(name="hogs", values={"sustained_pct": 90.0})
    browser = as_user(root)
    page = "/admin/monitor/policyvalues/"

    assert f"{page}cooling/delete/" in browser.get(page).content.decode()
    assert browser.get(f"{page}cooling/delete/").status_code == 200
    assert browser.post(f"{page}cooling/delete/", {"post": "yes"}).status_code == 302
    assert browser.post(f"{page}hogs/delete/", {"post": "yes"}).status_code == 403

    assert list(PolicyValues.objects.values_list("name", flat=True)) == ["hogs"]
    entry = audit.about("policy cooling")[0]
    assert (entry.by, entry.before) == ("root", {"wait_s": 9.0})


@pytest.mark.django_db
@pytest.mark.usefixtures("former_in_the_file", "data")
def test_operators_see_them_on_the_page_of_rules(
    root: User, alice: User, as_user: Callable[[User], Client]
) -> None:
    text = FORMER.format(IN_SETTINGS)

    assert text in as_user(root).get("/rules/").content.decode()
    assert text not in as_user(alice).get("/rules/").content.decode()


def test_the_check_names_them(file: Path, tmp_path: Path) -> None:
    file.write_text("[policy.hogs]\ncoverage_pct = 50\n")

    (finding,) = check_machine.retired_thresholds(load_config(data=tmp_path / "none"))

    assert finding.text == FORMER.format(IN_SETTINGS)
