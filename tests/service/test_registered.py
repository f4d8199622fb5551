"""The parts that apps add to pages and tasks at start; a moved module must not lose one."""

from __future__ import annotations

from monitor.pages import frames
from monitor.runtime import pages as status
from monitor.usage.rows import rollups


def test_all_live_regions_are_there() -> None:
    names = {region.name for in_head in (False, True) for region in frames.regions(in_head=in_head)}

    assert names == {"alerts", "incidents", "mode", "pressure", "queue", "timeline"}


def test_all_sections_of_the_status_page_are_there() -> None:
    assert {template for template, _ in status._sections} == {
        "scheduler/_accounts.html",
        "scheduler/_calibration.html",
        "scheduler/_engines.html",
        "scheduler/_means.html",
    }


def test_outdated_rows_of_each_subject_are_pruned() -> None:
    subjects = {too_old.__module__.split(".")[1] for too_old in rollups._others}

    assert subjects == {
        "accounts", "disk", "jobs", "language_models", "limits", "submission"
    }  # fmt: skip
