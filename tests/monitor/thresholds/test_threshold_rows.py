from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext
from msgspec.structs import replace

from gpucoord_site.config import values as config_policies
from monitor.facts.thresholds import percent
from monitor.journal.rows import audit
from monitor.models import AuditEntry, PolicyValues
from monitor.thresholds import policy as policies
from monitor.thresholds import rows as monitor_rows
from monitor.thresholds.policy import Layer, in_force, table_problems
from tests.builders import NOW

Given = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedPolicy:
    enter_pct: float = percent(50.0, "Enter")
    leave_pct: float = percent(30.0, "Leave")
    names: tuple[str, ...] = ()

    def conflicts(self) -> dict[str, str]:
        if self.leave_pct < self.enter_pct:
            return {}
        return {"leave_pct": "it must be below enter_pct"}


PRESETS = {"desktop": {"tried": {"enter_pct": 60.0, "leave_pct": 40.0}}}


@pytest.fixture(autouse=True)
def _tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_rows, "_registered", {"tried": TriedPolicy})
    monkeypatch.setattr(monitor_rows, "_presets", [PRESETS])


@pytest.fixture
def given(settings: Any) -> Given:
    """Settings of the file: given("desktop", leave_pct=10)."""

    def give(profile: str = "server", **values: object) -> None:
        changes = {"profile": profile, "policy": {"tried": values}}
        settings.CONFIG = replace(settings.CONFIG, **changes)

    return give


@pytest.mark.django_db
def test_without_any_change_the_shipped_defaults_hold() -> None:
    assert monitor_rows.current(TriedPolicy) == TriedPolicy()


@pytest.mark.django_db
def test_operators_stand_over_the_file_and_the_file_over_the_profile(given: Given) -> None:
    given("desktop", leave_pct=10, names=["blender"])
    monitor_rows.change("tried", {"names": ["obs"]}, by="root", now=NOW)

    found = monitor_rows.current(TriedPolicy)

    assert found == TriedPolicy(enter_pct=60, leave_pct=10, names=("obs",))


@pytest.mark.django_db
def test_each_value_has_its_origin_and_the_value_below_it(given: Given) -> None:
    given("desktop", leave_pct=10)
    monitor_rows.change("tried", {"names": ["obs"], "leave_pct": 5.0}, by="root", now=NOW)

    found = {s.threshold.name: s for s in monitor_rows.ThresholdsInForce().settings("tried")}

    assert [(s.value, s.origin) for s in found.values()] == [
        (60.0, "profile desktop"),
        (5.0, "changed here"),
        (("obs",), "changed here"),
    ]
    leave = found["leave_pct"]
    assert (leave.below, leave.below_origin) == (10.0, "gpucoord.toml")
    assert found["names"].below_origin == "shipped"


@pytest.mark.django_db
def test_all_policies_cost_one_query(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1) as queries:
        found = monitor_rows.ThresholdsInForce()
        found.of(TriedPolicy)
        found.settings("tried")
    assert isinstance(queries, CaptureQueriesContext)


@pytest.mark.django_db
def test_a_row_that_another_version_wrote_does_not_stop_a_loop() -> None:
    PolicyValues.objects.create(name="tried", values={"gone": 1, "enter_pct": "x", "names": ["a"]})

    assert monitor_rows.current(TriedPolicy) == TriedPolicy(names=("a",))


@pytest.mark.django_db
def test_a_change_is_audited_with_the_previous_value() -> None:
    monitor_rows.change("tried", {"enter_pct": 55.0}, by="root", now=NOW)
    monitor_rows.change("tried", {"enter_pct": 70.0}, by="root", now=NOW)

    newest = audit.about("policy tried")[0]

    assert newest.text == "root changed policy tried: enter_pct from 55 % to 70 %"
    assert (newest.before, newest.after) == ({"enter_pct": 55.0}, {"enter_pct": 70.0})


@pytest.mark.django_db
def test_what_changes_nothing_is_not_audited() -> None:
    assert not monitor_rows.change("tried", {}, by="root", now=NOW)
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db
def test_values_for_one_host_count_there_alone_and_over_all_others(given: Given) -> None:
    given("desktop", leave_pct=10)
    monitor_rows.change("tried", {"leave_pct": 5.0, "enter_pct": 20.0}, by="root", now=NOW)
    monitor_rows.change("tried", {"leave_pct": 7.0}, by="root", now=NOW, host="far")

    far, near = (monitor_rows.ThresholdsInForce(host) for host in ("far", "near"))

    assert far.of(TriedPolicy) == TriedPolicy(enter_pct=20, leave_pct=7)
    assert near.of(TriedPolicy) == TriedPolicy(enter_pct=20, leave_pct=5)
    assert monitor_rows.current(TriedPolicy) == TriedPolicy(enter_pct=20, leave_pct=5)
    leave = far.settings("tried")[1]
    assert (leave.origin, leave.below, leave.changed_here) == ("changed for far", 5.0, True)
    assert near.settings("tried")[1].hosts == {"far": 7.0}
    newest = audit.about("policy tried")[0]
    assert newest.text == "root changed policy tried for far: leave_pct from 5 % to 7 %"


@pytest.mark.django_db
def test_a_value_for_all_hosts_may_not_conflict_with_that_of_one() -> None:
    monitor_rows.change("tried", {"leave_pct": 45.0}, by="root", now=NOW, host="far")

    assert monitor_rows.problems("tried", {"enter_pct": 40.0}) == {
        "leave_pct": "it must be below enter_pct on far, which has its own values"
    }
    assert monitor_rows.problems("tried", {"enter_pct": 40.0}, "near") == {}


@pytest.mark.django_db
def test_values_that_conflict_with_lower_layers_are_refused(given: Given) -> None:
    given("desktop")

    assert monitor_rows.problems("tried", {"leave_pct": 55.0}) == {}
    assert monitor_rows.problems("tried", {"leave_pct": 60.0}) == {
        "leave_pct": "it must be below enter_pct"
    }


UNDER = Layer("profile server", {})


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"tried": {"enter_pct": 55}}, []),
        ({"tired": {}}, ["[policy.tired] is no policy; did you mean tried?"]),
        ({"tried": 5}, ["policy.tried is 5: it must be a table."]),
        (
            {"tried": {"enter_pct": 120, "zzz": 1}},
            [
                "enter_pct in [policy.tried] is 120: it must be a number from 0 to 100.",
                "zzz in [policy.tried] is no threshold.",
            ],
        ),
        (
            {"tried": {"leave_pct": 90}},
            ["leave_pct in [policy.tried] is 90.0: it must be below enter_pct."],
        ),
    ],
)
def test_each_mistake_in_the_file_is_one_sentence(tables: Any, says: list[str]) -> None:
    assert table_problems(tables, {"tried": TriedPolicy}, UNDER) == says


@pytest.mark.parametrize("profile", ["desktop", "server", "coordinator"])
def test_what_profiles_preset_is_valid(profile: str) -> None:
    presets = [table.get(profile, {}) for table in config_policies.PRESETS]
    for name, values in [entry for preset in presets for entry in preset.items()]:
        kind = config_policies.POLICIES[name]
        assert policies.problems(kind, values) == {}
        made = in_force(kind, name, [Layer(profile, {name: values})])
        assert policies.conflicts(made) == {}


@pytest.mark.parametrize(("name", "kind"), config_policies.POLICIES.items())
def test_every_policy_can_be_shown_and_its_defaults_are_allowed(name: str, kind: type) -> None:
    for threshold in policies.thresholds(kind).values():
        assert threshold.choices or threshold.kind in policies.KINDS, threshold.name
        assert threshold.accepts(threshold.plain(threshold.default)), threshold.name
        assert "label" in kind.__dataclass_fields__[threshold.name].metadata, threshold.name  # type: ignore[attr-defined]
    assert policies.conflicts(kind()) == {}
