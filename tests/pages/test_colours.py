from __future__ import annotations

import re

import pytest

from tests.processes.service import ROOT


@pytest.mark.parametrize("sheet", ["app.css", "admin_site.css"])
def test_the_colours_of_both_themes_stand_in_one_declaration(sheet: str) -> None:
    css = (ROOT / "static" / sheet).read_text()

    assert css.count("light-dark(") > 10
    assert "prefers-color-scheme" not in css
    names = re.findall(r"(--(?:bg|text|accent|body-bg|link-fg)):", css)
    assert len(names) == len(set(names))
