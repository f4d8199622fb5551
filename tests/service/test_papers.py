from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpucoord_site.cli import COMMANDS
from gpucoord_site.config import Config
from gpucoord_site.config_problems import variables
from scheduler.jobs import TRANSITIONS, JobState, Outcome

ROOT = Path(__file__).resolve().parents[2]
TOPS = {path.name for path in ROOT.iterdir()}
PAPERS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")
# Defaults that depend on the machine, in words.
COMPUTED = {
    "data": "`/var/lib/gpucoord` for root, else `~/.local/share/gpucoord`",
    "node": "the host's name",
    "cpu_jobs": "the number of CPUs, at least 2",
}


def settings_table() -> list[str]:
    """The rows that README.md must have: key, variable, default, what it is."""
    return [
        f"| `{name}` | `{variables(Config, name)[0]}` | {_default(name)} | {field.description} |"
        for name, field in Config.model_fields.items()
    ]


def _default(name: str) -> str:
    if name in COMPUTED:
        return COMPUTED[name]
    default = Config.model_fields[name].get_default(call_default_factory=True)
    if default in (None, [], {}):
        return "–"
    if isinstance(default, list):
        return f"`{', '.join(default)}`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _text(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_readme_lists_every_setting_as_it_is() -> None:
    rows = [
        line for line in _text("README.md").splitlines() if re.match(r"\| `\w+` \| `[A-Z]", line)
    ]

    assert rows == settings_table(), "\n".join(settings_table())


def test_the_readme_names_every_command() -> None:
    text = _text("README.md")

    assert [name for name in COMMANDS if f"gpucoord {name}" not in text] == []


@pytest.mark.parametrize("paper", PAPERS)
def test_every_file_that_a_paper_names_is_there(paper: str) -> None:
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.{},*-]*)`", _text(paper)))
    paths = {path for name in named for path in _expanded(name) if path.split("/")[0] in TOPS}

    assert [path for path in sorted(paths) if not list(ROOT.glob(path.rstrip("/")))] == []


def _expanded(name: str) -> list[str]:
    """`a/{b,c}.py` is two paths."""
    match = re.search(r"\{([^}]*)\}", name)
    if not match:
        return [name]
    return [name.replace(match[0], part) for part in match[1].split(",")]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_picture_and_page_that_a_paper_links_is_there(paper: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", _text(paper))

    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_the_states_and_outcomes_of_jobs_are_told_as_they_are() -> None:
    text = _text("ARCHITECTURE.md")

    assert [word for word in (*JobState, *Outcome) if f"`{word}`" not in text] == []
    for old, news in TRANSITIONS.items():
        if news:
            told = ", ".join(f"`{new}`" for new in JobState if new in news)
            assert f"`{old}` → {told}" in text


def test_the_papers_stay_short() -> None:
    assert len(_text("README.md").splitlines()) <= 195
    assert len(_text("ARCHITECTURE.md").splitlines()) <= 260
