from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE, Open

pytestmark = pytest.mark.browser


def submit(page: Page, command: str, **fields: str) -> str:
    """Submit by the form; the number of the job whose page opens."""
    page.goto("/jobs/new/")
    page.get_by_label("Command").fill(command)
    for label, value in fields.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(value)
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    return page.url.rstrip("/").rpartition("/")[2]


def test_a_job_is_submitted_watched_and_cancelled(open_page: Open) -> None:
    page = open_page("/jobs/new/")
    submit(page, "echo it begins; sleep 600", GPUs="0")
    expect(page.locator("#log")).to_contain_text("it begins")
    expect(page.locator(".job-verdict .badge")).to_have_text("running")

    page.locator("#cancel").click()
    page.get_by_role("button", name="Cancel the job").click()

    expect(page.locator(".job-verdict .badge")).to_have_text("cancelled")


def test_its_title_never_loses_the_mark_of_the_simulation(open_page: Open) -> None:
    page = open_page("/jobs/new/")
    number = submit(page, "true", GPUs="8")
    # The number of incidents stands before the mark.
    page.evaluate(
        """() => {
          window.titles = [];
          new MutationObserver(() => {
            window.titles.push(document.title);
            if (!document.title.startsWith("(")) document.title = `(3) ${document.title}`;
          }).observe(document.querySelector("title"), { childList: true });
          document.title = `(3) ${document.title}`;
        }"""
    )
    other = open_page(f"/jobs/{number}/")
    other.get_by_role("button", name="Hold").click()
    expect(page.locator(".job-verdict .badge")).to_have_text("held")

    assert [title for title in page.evaluate("titles") if "[simulated]" not in title] == []
    other.get_by_role("button", name="Release").click()


def test_a_log_streams_line_by_line(open_page: Open) -> None:
    page = open_page("/jobs/new/")
    submit(page, "for i in 1 2 3 4 5; do echo line $i; sleep 0.3; done", GPUs="0")

    expect(page.locator("#log")).to_contain_text("line 1")
    expect(page.locator("#log")).to_contain_text("line 5")
    expect(page.locator(".job-verdict .badge")).to_have_text("succeeded")


def test_its_process_appears_on_the_dashboard_and_goes(open_page: Open) -> None:
    dashboard = open_page("/")
    expect(dashboard.locator("#connection")).to_have_attribute("data-state", "live")
    page = open_page("/jobs/new/")
    number = submit(page, "sleep 600")
    work = dashboard.locator(f".b-who a[href='/jobs/{number}/']")

    expect(work).to_be_visible()
    expect(dashboard.locator("#region-queue")).to_contain_text("sleep 600")

    page.locator("#cancel").click()
    page.get_by_role("button", name="Cancel the job").click()

    expect(work).to_have_count(0)


def test_what_a_person_opened_stays_open_when_news_come(open_page: Open) -> None:
    page = open_page("/jobs/new/")
    number = submit(page, "true", GPUs="8")
    expect(page.locator(".why")).to_be_visible()
    expect(page.locator("#job-live details")).to_have_count(2)
    details = page.locator("#job-live details").all()
    for each in details:
        if each.get_attribute("open") is None:
            each.locator("summary").click()

    other = open_page(f"/jobs/{number}/")
    other.get_by_role("button", name="Hold").click()

    expect(page.locator(".why")).to_contain_text("You hold it until it is released")
    assert len(details) == 2
    for each in details:
        expect(each).to_have_attribute("open", "")
    other.get_by_role("button", name="Release").click()
    other.locator("#cancel").click()
    other.get_by_role("button", name="Cancel the job").click()


def test_a_wrong_form_keeps_what_was_typed(open_page: Open) -> None:
    page = open_page("/jobs/new/")
    page.get_by_label("Command").fill("python train.py")
    page.get_by_label("GPUs", exact=True).fill("99")
    page.get_by_role("button", name="Submit the job").click()

    expect(page.locator(".error-text").first).to_be_visible()
    expect(page.get_by_label("Command")).to_have_value("python train.py")


def test_a_job_page_fits_a_phone(open_page: Open) -> None:
    page = open_page("/jobs/new/", size=PHONE)
    submit(page, f"echo {'x' * 300}", GPUs="0")
    expect(page.locator("#log")).to_contain_text("xxx")

    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_hold_and_cancel_go_when_the_job_has_ended(open_page: Open) -> None:
    page = open_page("/jobs/new/")
    number = submit(page, "exit 3", GPUs="8")
    expect(page.get_by_role("button", name="Hold")).to_be_visible()
    other = open_page(f"/jobs/{number}/")
    other.get_by_role("button", name="Hold").click()

    expect(page.locator(".job-verdict .badge")).to_have_text("held")
    expect(page.get_by_role("button", name="Release")).to_be_visible()
    expect(page.get_by_role("button", name="Hold")).to_have_count(0)

    other.locator("#cancel").click()
    other.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".job-verdict .badge")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Release")).to_have_count(0)
    expect(page.locator("#cancel")).to_have_count(0)


def test_a_long_owner_leaves_room_for_the_name_of_the_job(open_page: Open) -> None:
    page = open_page("/jobs/new/", size=PHONE)
    number = submit(page, "sleep 300", GPUs="0")
    page.goto("/jobs/")
    name = "a" * 60
    page.evaluate(
        "name => document.querySelectorAll('.owner').forEach((e) => { e.textContent = name; })",
        name,
    )
    link = page.locator(f"#job-{number} .job-name a")
    box = link.bounding_box()
    assert box
    assert box["width"] > 60
    link.click()
    page.wait_for_url(f"**/jobs/{number}/")
    page.locator("#cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".job-verdict .badge")).to_have_text("cancelled")


def test_the_log_shows_colours_and_can_be_searched(open_page: Open) -> None:
    page = open_page("/jobs/new/")
    submit(page, "printf 'one\\n\\033[31mred alert\\033[0m\\nthree\\n'", GPUs="0")
    expect(page.locator(".job-verdict .badge")).to_have_text("succeeded")
    for _ in range(2):
        expect(page.locator("#log .a31")).to_have_text("red alert\n")
        expect(page.locator("#log .line[data-n='3']")).to_contain_text("three")
        assert "[31m" not in page.locator("#log").inner_text()
        # After the last line break there is no line.
        expect(page.locator("#log .line:visible")).to_have_count(3)
        # Then as the server renders it.
        page.reload()

    page.locator("#log-search").fill("ALERT")
    expect(page.locator("#log-hits")).to_have_text("1 line")
    page.keyboard.press("Enter")
    expect(page.locator("#L2")).to_have_class("line hit chosen")


def test_a_line_of_a_log_has_an_address(open_page: Open) -> None:
    page = open_page("/jobs/new/")
    submit(page, "seq 1 300", GPUs="0")
    expect(page.locator("#L300")).to_contain_text("300")
    page.locator("#L290").click(position={"x": 5, "y": 5})
    page.wait_for_function("location.hash === '#L290'")
    page.reload()

    expect(page.locator("#L290")).to_have_class("line chosen")
    expect(page.locator("#L290")).to_be_in_viewport()


def test_the_expected_start_and_the_commands_follow_the_form(open_page: Open) -> None:
    page = open_page("/jobs/new/")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_label("Command").fill("python train.py")
    page.get_by_label("GPUs", exact=True).fill("0")

    expect(page.locator("#draft")).to_contain_text("The job would start now.")
    page.get_by_label("GPUs", exact=True).fill("3")
    expect(page.locator("#draft-command")).to_contain_text("--gpus 3")
    page.get_by_role("button", name="Copy for gpucoord submit").click()

    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "gpucoord submit --detach --gpus 3 -- 'python train.py'"


def test_a_batch_is_checked_beside_its_form_and_not_submitted(open_page: Open) -> None:
    page = open_page("/batches/", expected=("422",))
    page.get_by_label("Script").select_option("whisper_transcribe")
    page.get_by_label("Items", exact=True).fill("/data/a.wav\nb.wav")
    page.get_by_label("Folder for the text").fill("/data/texts")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("alert")).to_contain_text("Item 2: 'b.wav' does not match")
    page.get_by_label("Items", exact=True).fill("/data/a.wav\n/data/b.wav")
    page.get_by_role("button", name="Check").click()

    expect(page.locator("#batch-answer")).to_contain_text("2 items without mistakes")
    page.reload()
    expect(page.get_by_text("No batches yet")).to_be_visible()
