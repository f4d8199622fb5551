from __future__ import annotations

import re

import pytest
from django.urls import reverse
from playwright.sync_api import Browser, Page, ViewportSize, expect

from monitor.templatetags.monitor_tags import MORE_PAGES, PAGES
from tests.browser.conftest import GPU_0, PHONE, WIDE, Open
from tests.processes.service import Service

pytestmark = pytest.mark.browser
TABLET: ViewportSize = {"width": 1024, "height": 768}
MENU = [reverse(name) for _, name in (*PAGES, *MORE_PAGES)]
PATHS = [
    *MENU,
    "/add-model/",
    "/reports/capacity/",
    "/reports/stored/",
    "/reports/tags/?tag=project",
    "/reports/?last=7d",
    "/windows/ask/",
    "/users/admin/",
    "/account/",
    "/setup/",
    "/people/",
    "/people/add/",
    "/people/1/",
    "/docs/operators/security/",
    "/docs/users/quotas/",
    "/docs/command-line/",
    "/docs/?q=quota",
]

TWO_OWNERS = """() => {
  const row = document.querySelector(".b-row"), board = document.querySelector(".board");
  board.classList.add("many");
  row.querySelector(".b-who").innerHTML = `<span class="b-owners">
    <a class="owner u1 s1">gpucoord-models</a><a class="owner u2 s2">charlotte</a></span>
    <span class="b-work">${"name".repeat(40)}</span>`;
  return [...row.querySelectorAll(".owner")].map((each) => each.getBoundingClientRect().width);
}"""


def overflow(page: Page) -> int:
    """How many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def has_connection_toasts_and_palette(page: Page) -> None:
    expect(page.locator("#connection")).to_have_count(1)
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator("#toasts[role=status]")).to_have_count(1)
    for keys in ("Control+k", "Meta+k"):
        page.keyboard.press(keys)
        expect(page.locator("dialog#palette[role=dialog]")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("dialog#palette")).not_to_be_visible()


@pytest.mark.parametrize("path", PATHS)
def test_it_says_that_it_is_simulated_fits_a_phone_and_has_its_frame(
    path: str, open_page: Open
) -> None:
    page = open_page(path, size=PHONE)
    assert page.locator(".sim-banner").is_visible()
    assert page.title().startswith("[simulated] ")
    page.wait_for_timeout(300)

    assert overflow(page) <= 0
    page.set_viewport_size(WIDE)
    has_connection_toasts_and_palette(page)


@pytest.mark.parametrize("path", ["/admin/", "/admin/monitor/event/"])
def test_a_page_of_the_admin_has_its_frame(path: str, open_page: Open) -> None:
    has_connection_toasts_and_palette(open_page(path))


def test_the_gpu_page_fits_a_phone(open_page: Open) -> None:
    page = open_page("/", size=PHONE)
    page.locator(GPU_0).click()
    page.wait_for_url("**/gpus/**")

    assert overflow(page) <= 0


def test_the_admin_has_the_theme_of_the_site(open_page: Open) -> None:
    page = open_page("/")
    theme = page.locator("html")
    for chosen in ("light", "dark"):
        page.locator("[data-theme-toggle]").click()
        expect(theme).to_have_attribute("data-theme", chosen)
        page.goto("/admin/")
        expect(theme).to_have_attribute("data-theme", chosen)
        page.goto("/")
    page.goto("/admin/")
    page.locator("#user-tools .theme-toggle").click()
    now = str(theme.get_attribute("data-theme"))
    assert now != "dark"
    page.goto("/")
    expect(theme).to_have_attribute("data-theme", now)


def test_login_and_errors_are_in_style(open_page: Open) -> None:
    page = open_page("/login/", log_in=False)
    assert page.locator("form.login").is_visible()

    page = open_page("/")
    page.goto("/status/")
    assert page.locator("h1").is_visible()


def test_every_control_can_be_named_and_reached(open_page: Open) -> None:
    page = open_page("/")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('a, button, input:not([type=hidden]), select')]
            .filter((e) => !e.textContent.trim() && !e.ariaLabel && !e.labels?.length)
            .map((e) => e.outerHTML)"""
    )
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    page.keyboard.press("Tab")

    assert nameless == []
    assert len(ids) == len(set(ids))
    assert page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.parametrize("size", [PHONE, TABLET], ids=["phone", "tablet"])
def test_the_menu_of_a_small_screen_leads_to_every_page(
    size: ViewportSize, open_page: Open
) -> None:
    page = open_page("/shares/", size=size)
    menu = page.locator("details.menu")
    assert "Shares" in menu.locator("summary").inner_text()
    assert menu.bounding_box()["height"] < 60  # type: ignore[index]
    menu.locator("summary").click()
    links = menu.get_by_role("link")

    assert {"Dashboard", "Jobs", "Time windows", "Incidents", "Status", "Rules"} <= {
        link.inner_text() for link in links.all()
    }
    assert menu.locator("[aria-current=page]").inner_text() == "Shares"
    menu.get_by_role("link", name="Incidents").click()
    page.wait_for_url("**/incidents/")


def test_the_menu_opens_below_the_header_and_closes_with_escape(open_page: Open) -> None:
    page = open_page("/")
    menu = page.locator("details.menu")
    menu.locator("summary").click()
    expect(menu.get_by_role("link", name="Status")).to_be_visible()
    page.keyboard.press("Escape")
    expect(menu.get_by_role("link", name="Status")).not_to_be_visible()
    menu.locator("summary").click()
    menu.get_by_role("link", name="Status").click()
    page.wait_for_url("**/status/")

    expect(menu.locator("summary")).to_contain_text("Status")


def test_the_header_has_a_menu_and_at_most_seven_words(open_page: Open) -> None:
    page = open_page("/")
    expect(page.locator("#connection")).to_contain_text("live")
    shown = page.locator("header.top").inner_text().split()
    words = [word for word in shown if word.isalpha()]

    assert "Menu" in words
    assert len(words) <= 8, words
    assert "cooperative" not in words


def test_the_menu_works_without_javascript(
    open_page: Open, chromium: Browser, service: Service
) -> None:
    session = open_page("/", size=PHONE).context.storage_state()
    with chromium.new_context(
        viewport=PHONE, base_url=service.address, java_script_enabled=False, storage_state=session
    ) as context:
        page = context.new_page()
        page.goto("/status/")
        assert "as of" in page.locator("#connection").inner_text()
        assert not page.locator("[data-theme-toggle]").is_visible()
        page.locator("details.menu summary").click()
        page.locator("details.menu").get_by_role("link", name="Events").click()
        page.wait_for_url("**/events/")


def test_paper_is_white_in_the_dark_theme(open_page: Open) -> None:
    page = open_page("/reports/")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    colour = """() => {
        const probe = document.body.appendChild(document.createElement('i'));
        probe.style.color = 'var(--surface)';
        const { color } = getComputedStyle(probe);
        probe.remove();
        return color;
    }"""

    assert page.evaluate(colour) == "rgb(22, 27, 34)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"


def test_a_link_to_a_policy_opens_its_thresholds(open_page: Open) -> None:
    page = open_page("/rules/")
    disk = page.locator("details:has(#disk)")
    expect(disk).not_to_have_attribute("open", re.compile(""))
    page.goto("/disks/")
    page.get_by_role("link", name="Rules").first.click()
    page.wait_for_url("**/rules/#disk")

    expect(disk).to_have_attribute("open", "")
    expect(page.locator("#disk-title")).to_be_in_viewport()


def test_the_gpus_of_an_incident_wrap_on_a_phone(open_page: Open) -> None:
    page = open_page("/incidents/", size=PHONE)
    wider = page.evaluate(
        """() => {
          document.querySelector("#incidents").innerHTML = `<div class="table-wrap">
            <table class="table event-table"><tbody><tr><td class="event-text">python
            <span class="chip">Heavy use outside the queue on GPUs 3, 18, 19, 26, 27, 42, 43,
            58 and 11 more</span></td></tr></tbody></table></div>`;
          const box = document.querySelector("#incidents .table-wrap");
          return box.scrollWidth - box.clientWidth;
        }"""
    )

    assert wider <= 0


def test_a_row_of_many_gpus_on_a_phone_keeps_the_names_of_two_owners(open_page: Open) -> None:
    page = open_page("/", size=PHONE)
    widths = page.evaluate(TWO_OWNERS)

    # The mark, and at least six letters of 12 px.
    assert len(widths) == 2
    assert min(widths) >= 12 + 6 * 5.5


def test_a_row_of_many_gpus_on_a_phone_is_as_high_as_its_lines_and_cuts_no_incident(
    open_page: Open,
) -> None:
    page = open_page("/", size=PHONE)
    height, missing, cut = page.evaluate(
        """() => {
          document.querySelector(".board").classList.add("many");
          const row = document.querySelector(".b-row"), state = row.querySelector(".b-state");
          state.innerHTML = `<span class="badge" data-shape="busy">job</span>
            <a class="chip warning" href="/">heavy use</a>`;
          const chip = state.querySelector(".chip");
          return [row.getBoundingClientRect().height, row.scrollHeight - row.clientHeight,
            chip.scrollWidth - chip.clientWidth];
        }"""
    )

    assert height >= 60
    assert (missing, cut) == (0, 0)


def test_actions_for_selected_jobs_come_with_the_first_job(open_page: Open) -> None:
    page = open_page("/jobs/?who=mine&q=nothing-is-called-so")
    expect(page.locator("#bulk")).to_be_hidden()
    page.goto("/jobs/new/")
    page.get_by_label("Command").fill("sleep 30")
    page.get_by_label("GPUs", exact=True).fill("0")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/"))
    page.goto("/jobs/")

    expect(page.locator("#bulk")).to_be_visible()


def test_a_rejected_form_names_its_mistakes_and_focuses_the_first(open_page: Open) -> None:
    page = open_page("/jobs/new/", expected=("422",))
    page.get_by_label("Command").fill("true")
    page.get_by_label("GPUs", exact=True).fill("99")
    page.get_by_label("Time limit").fill("soon")
    page.keyboard.press("Enter")
    told = page.get_by_role("alert")

    expect(told.get_by_role("link")).to_have_text(["GPUs", "Time limit"])
    expect(page.get_by_label("GPUs", exact=True)).to_be_focused()
    told.get_by_role("link", name="Time limit").click()
    expect(page.get_by_label("Time limit")).to_be_focused()


@pytest.mark.parametrize(
    ("key", "path"), [("b", "/batches/"), ("l", "/models/"), ("o", "/reports/")]
)
def test_two_keys_go_to_the_pages_of_the_menu(key: str, path: str, open_page: Open) -> None:
    page = open_page("/mode/")
    page.keyboard.press("g")
    page.keyboard.press(key)

    page.wait_for_url(f"**{path}")


def test_a_long_verdict_wraps_on_a_phone(open_page: Open) -> None:
    page = open_page("/disks/", size=PHONE)
    page.evaluate(
        """() => { document.querySelector(".verdict .badge").textContent =
            "Mean demand stays below 8 GPUs until 22 January 2027"; }"""
    )

    assert overflow(page) <= 0


@pytest.mark.parametrize("path", ["/shares/", "/jobs/", "/processes/", "/incidents/"])
def test_no_column_of_a_table_is_cut_off_at_1024_pixels(path: str, open_page: Open) -> None:
    page = open_page(path, size=TABLET)
    cut = page.evaluate(
        """() => [...document.querySelectorAll(".table-wrap")]
            .map((box) => box.scrollWidth - box.clientWidth).filter((px) => px > 0)"""
    )

    assert cut == []
