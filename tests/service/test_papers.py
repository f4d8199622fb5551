from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from gpucoord_site.cli.main import COMMANDS
from scheduler.facts.blockers import TIER_WORDS, BlockerCode
from scheduler.facts.jobs import TRANSITIONS, JobState, Outcome
from tests.test_architecture import LAYER_WORDS

ROOT = Path(__file__).resolve().parents[2]
TOPS = {path.name for path in ROOT.iterdir()}
PAPERS = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name != "LICENSE"
)


@cache
def _text(name: str) -> str:
    return (ROOT / name).read_text()


def test_every_command_is_in_the_reference() -> None:
    text = _text("docs/reference/cli.md")

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
def test_every_picture_page_and_heading_that_a_paper_links_is_there(paper: str) -> None:
    links = re.findall(r"\]\(([^)]+)\)", _text(paper))

    assert [link for link in links if "://" not in link and not _is_there(paper, link)] == []


def _is_there(paper: str, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (ROOT / paper).parent / path if path else ROOT / paper
    if not target.exists():
        return False
    return not anchor or anchor in _anchors(target)


@cache
def _anchors(path: Path) -> frozenset[str]:
    """The anchors of the headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    words = (re.sub(r"[^\w\- ]", "", head.lower()) for head in heads)
    return frozenset(word.strip().replace(" ", "-") for word in words)


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    index = _text("docs/README.md")
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]

    assert [page for page in pages if page != "README.md" and f"]({page})" not in index] == []


def test_every_reason_to_wait_is_explained_to_users() -> None:
    text = _text("docs/users/why-it-waits.md")
    codes = re.findall(r"^\| `(\w+)` \|", text, re.M)

    assert sorted(codes) == sorted(code.value for code in BlockerCode)
    assert [words for words in TIER_WORDS.values() if f"| {words} |" not in text] == []


def test_the_table_of_layers_is_the_one_that_is_checked() -> None:
    rows = re.findall(r"^\| L(\d) \w+ \| (.+?) \|", _text("ARCHITECTURE.md"), re.M)
    words = {word: int(layer) for layer, cell in rows for word in re.findall(r"`(\w+)`", cell)}

    assert words == LAYER_WORDS


@pytest.mark.parametrize("app", ["monitor", "scheduler", "gpucoord_site"])
def test_every_subject_is_named_in_the_architecture(app: str) -> None:
    text = _text("ARCHITECTURE.md")
    general = {"migrations", "models", "management", "templatetags"}
    subjects = sorted({path.parent.name for path in (ROOT / app).glob("*/*.py")})

    named = {name for line in text.splitlines() for name in re.findall(r"`(?:\w+/)?(\w+)/", line)}
    assert [s for s in subjects if s not in general | named] == []


def test_the_documented_states_and_outcomes_of_jobs_match_the_code() -> None:
    text = _text("ARCHITECTURE.md")

    assert [word for word in (*JobState, *Outcome) if f"`{word}`" not in text] == []
    for old, new_states in TRANSITIONS.items():
        if new_states:
            listed = ", ".join(f"`{new}`" for new in JobState if new in new_states)
            assert f"`{old}` → {listed}" in text


def test_every_outcome_is_explained_to_users() -> None:
    text = _text("docs/users/jobs.md")

    assert [outcome for outcome in Outcome if f"| `{outcome}` |" not in text] == []
