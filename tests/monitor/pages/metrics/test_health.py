from __future__ import annotations

from typing import Any

from monitor.facts.gpus import Condition, HealthReading
from monitor.facts.readings import Health
from monitor.gpus.policy import health as policy
from monitor.pages.metrics import CLOCK_REASONS, Families, add_health
from tests.builders import gpu, gpu_uuid, snapshot
from tests.monitor.scrape import Scrape, scrape_of


def scrape(xids: dict[str, dict[int, float]] | None = None, **seen: Any) -> Scrape:
    health = HealthReading(gpu_uuid=gpu_uuid(), **seen)
    into = Families()
    one = gpu(condition=Condition.HEALTHY)
    add_health(into, snapshot([one], health=(health,)), xids or {})
    return scrape_of(into)


def test_each_reason_for_reduced_clocks_is_exported() -> None:
    found = scrape(clock_reasons=0x4 | 0x40)

    on = {s.labels["reason"]: s.value for s in found.families["gpu_throttle_reason"].samples}
    assert [reason for reason, value in on.items() if value] == ["power_cap", "hw_thermal"]
    assert len(on) == 9


def test_it_has_a_word_for_every_reason() -> None:
    assert CLOCK_REASONS.keys() == policy.CLOCK_REASONS.keys()


def test_memory_errors_are_counted_by_kind() -> None:
    found = scrape(ecc_corrected=12, ecc_uncorrected=0, remap_failed=False)

    assert found.value("gpu_ecc_errors_total", kind="corrected") == 12
    assert found.value("gpu_ecc_errors_total", kind="uncorrected") == 0
    assert found.value("gpu_row_remap_failed") == 0


def test_a_gpu_without_ecc_exports_no_ecc_metric() -> None:
    found = scrape()

    assert not found.names & {"gpu_ecc_errors_total", "gpu_throttle_reason"}


def test_xids_are_counted_in_all_and_by_number() -> None:
    found = scrape(xids={gpu_uuid(): {79: 1, 31: 4}})

    assert found.value("gpu_xid_errors_total") == 5
    assert found.value("gpu_xid_errors_by_code_total", xid="79") == 1
    assert found.value("gpu_xid_errors_by_code_total", xid="31") == 4


def test_before_the_first_xid_the_count_is_0_so_that_its_increase_is_seen() -> None:
    assert scrape().value("gpu_xid_errors_total") == 0


def test_one_condition_is_on() -> None:
    found = scrape()

    assert found.value("gpu_condition", condition="healthy") == 1
    assert sum(found.values("gpu_condition")) == 1


def test_a_lost_gpu_keeps_its_xids_and_loses_its_counters() -> None:
    lost = gpu(health=Health.LOST, condition=Condition.LOST)
    health = HealthReading(gpu_uuid=gpu_uuid(), ecc_corrected=3)
    into = Families()
    add_health(into, snapshot([lost], health=(health,)), {gpu_uuid(): {79: 1}})

    found = scrape_of(into)

    assert found.value("gpu_condition", condition="lost") == 1
    assert found.value("gpu_xid_errors_total") == 1
    assert "gpu_ecc_errors_total" not in found.names
