from __future__ import annotations

import re

from tests.processes.service import ROOT


def _colours(begin: str) -> list[str]:
    """The declarations of the rule that begins so in the style sheet of the site."""
    css = (ROOT / "static" / "app.css").read_text()
    body = css.split(begin)[1].split("}")[0]
    return re.findall(r"[\w-]+: [^;]+;", body)


def test_a_chosen_dark_theme_has_the_colours_of_the_automatic_one() -> None:
    chosen = _colours(':root[data-theme="dark"] {')
    automatic = _colours(':root[data-theme="auto"] {')

    assert len(chosen) > 30
    assert chosen == automatic
