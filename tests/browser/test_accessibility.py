"""axe-core looks at every page: both colour schemes, a desktop and a phone."""

from __future__ import annotations

from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import GPU_0, PHONE, WIDE, Open
from tests.browser.test_every_page import PATHS

pytestmark = [pytest.mark.browser, pytest.mark.slow]
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
ADMIN = ["/admin/", "/admin/monitor/policyvalues/", "/admin/scheduler/quota/add/"]
# axe-core measures with styles of its own, which the policy refuses.
ITS_STYLES = ("inline style", "CSP: style-src")
# One line per violation: the rule, what it asks for, and the elements that break it.
# A colour that still changes, as on a busy machine, is the colour of neither scheme.
LOOK = """async (rules) => {
  await new Promise((ready) => requestAnimationFrame(() => requestAnimationFrame(ready)));
  for (const change of document.getAnimations()) {
    if (change.effect.getComputedTiming().endTime !== Infinity) change.finish();
  }
  const options = { resultTypes: ["violations"], ...(rules && { runOnly: rules }) };
  const found = await axe.run({ exclude: [[".select2"]] }, options);
  return found.violations.flatMap((rule) =>
    rule.nodes.map((node) => `${rule.id}: ${rule.help}: ${node.target.join(" ")}`));
}"""

# All rules, and of the other scheme those about colours: nothing else differs.
RULES = {"light": None, "dark": ["color-contrast", "link-in-text-block"]}


def violations(page: Page) -> list[str]:
    page.evaluate(AXE)
    found = []
    for size, width in ((WIDE, "desktop"), (PHONE, "phone")):
        for scheme in RULES:
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme)
            # Old data fades, which comes to a page whose thread was busy.
            expect(page.locator(".is-stale")).to_have_count(0)
            found += [f"{width} {scheme}: {line}" for line in page.evaluate(LOOK, RULES[scheme])]
    return found


@pytest.mark.parametrize("path", [*PATHS, *ADMIN])
def test_a_page_has_no_violation(path: str, open_page: Open) -> None:
    assert violations(open_page(path, expected=ITS_STYLES)) == []


def test_the_login_page_has_no_violation(open_page: Open) -> None:
    assert violations(open_page("/login/", log_in=False, expected=ITS_STYLES)) == []


def test_the_page_of_a_gpu_has_no_violation(open_page: Open) -> None:
    page = open_page("/", expected=ITS_STYLES)
    page.locator(GPU_0).click()
    page.wait_for_url("**/gpus/**")

    assert violations(page) == []
