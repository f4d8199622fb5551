"""The chapters of docs/: their order, headings, HTML and search. Needs no Django."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import TYPE_CHECKING

from django.http import HttpRequest
from msgspec import Struct

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

PACKAGE = Path(__file__).resolve().parents[1]
# In the wheel the package has a copy of the folder.
FOLDER = PACKAGE / "docs" if (PACKAGE / "docs").is_dir() else PACKAGE.parent / "docs"
INDEX = "README"
SUFFIX = ".md"
ROOT_URL = "/docs/"
MOST_WORDS, MOST_HITS, AROUND = 8, 30, 90
_COMMENT = re.compile(r"^<!--[^\n]*-->\n*", re.MULTILINE)
_LINK = re.compile(r"^\s*- \[([^\]]+)\]\(([^)]+)\.md\)(?:: (.*))?$")


class NoChapter(LookupError):
    """There is no such chapter; the message is its name."""


class Entry(Struct, frozen=True):
    """A line of the index. name: "users/first-job"; group: the heading above it."""

    name: str
    title: str
    about: str
    group: str

    @property
    def url(self) -> str:
        return url_of(self.name)


class Heading(Struct, frozen=True):
    level: int
    text: str
    anchor: str


class Chapter(Struct, frozen=True):
    """`html`: safe to show; all text in it is escaped."""

    name: str
    title: str
    html: str
    headings: tuple[Heading, ...]


class Hit(Struct, frozen=True):
    """A section with the searched words. `before`, `match`, `after`: the first place, as text."""

    url: str
    chapter: str
    section: str
    before: str
    match: str
    after: str


class Section(Struct, frozen=True):
    chapter: str
    heading: str
    anchor: str
    text: str

    @property
    def heads(self) -> str:
        """The title of the chapter and the heading."""
        return f"{chapter(self.chapter).title} {self.heading}"


def url_of(name: str) -> str:
    return ROOT_URL if name == INDEX else f"{ROOT_URL}{name}/"


@cache
def index() -> tuple[Entry, ...]:
    """All chapters in the order of the index page, each once."""
    entries: dict[str, Entry] = {}
    group = ""
    for line in source(INDEX).splitlines():
        if line.startswith("## "):
            group = line.removeprefix("## ").strip()
        elif match := _LINK.match(line):
            title, name, about = match[1], match[2], match[3] or ""
            entries.setdefault(name, Entry(name, title, about, group))
    return tuple(entries.values())


def names() -> frozenset[str]:
    return frozenset(entry.name for entry in index()) | {INDEX}


def find(topic: str) -> str:
    """The name of a chapter by its name or the last part of it. Raises NoChapter."""
    wanted = topic.strip("/").removesuffix(SUFFIX).lower()
    for name in sorted(names()):
        if name.lower() == wanted:
            return name
    last = [entry.name for entry in index() if PurePosixPath(entry.name).name == wanted]
    if not last:
        raise NoChapter(topic)
    return last[0]


def source(name: str) -> str:
    """The Markdown of a chapter of the index, without comments."""
    return _COMMENT.sub("", (FOLDER / f"{name}{SUFFIX}").read_text(encoding="utf-8"))


@cache
def chapter(name: str) -> Chapter:
    """Raises NoChapter."""
    if name not in names():
        raise NoChapter(name)
    tokens = _markdown().parse(source(name))
    headings = tuple(_prepared(tokens, name))
    title = next((heading.text for heading in headings if heading.level == 1), name)
    html: str = _markdown().renderer.render(tokens, _markdown().options, {})
    return Chapter(name, title, html, headings)


def neighbours(name: str) -> tuple[Entry | None, Entry | None]:
    """The chapters before and after this one in its group."""
    group = next((entry.group for entry in index() if entry.name == name), None)
    mates = [entry for entry in index() if entry.group == group]
    at = next((i for i, entry in enumerate(mates) if entry.name == name), None)
    if at is None:
        return None, None
    return (mates[at - 1] if at else None), (mates[at + 1] if at + 1 < len(mates) else None)


def search(text: str) -> list[Hit]:
    """Sections with words that begin with all of these; those with them in their heads first."""
    words = [
        re.compile(rf"(?<!\w){re.escape(word)}", re.IGNORECASE)
        for word in text.split()[:MOST_WORDS]
    ]
    if not words:
        return []
    matching = [
        section
        for section in _sections()
        if all(word.search(section.text) or word.search(section.heads) for word in words)
    ]
    matching.sort(key=lambda section: -sum(bool(word.search(section.heads)) for word in words))
    return [_hit(section, words) for section in matching[:MOST_HITS]]


def _hit(section: Section, words: Sequence[re.Pattern[str]]) -> Hit:
    places = [match.span() for word in words if (match := word.search(section.text))]
    start, end = min(places, default=(0, 0))
    first = max(0, start - AROUND)
    url = url_of(section.chapter)
    return Hit(
        url=f"{url}#{section.anchor}" if section.anchor else url,
        chapter=chapter(section.chapter).title,
        section=section.heading,
        before=("… " if first else "") + section.text[first:start],
        match=section.text[start:end],
        after=section.text[end : end + AROUND] + " …",
    )


@cache
def _sections() -> tuple[Section, ...]:
    """The text below each heading that has some, without Markdown."""
    each = (section for entry in index() for section in _sections_of(entry.name))
    return tuple(section for section in each if section.text)


def _sections_of(name: str) -> Iterator[Section]:
    heading, anchor, parts = chapter(name).title, "", list[str]()
    is_heading = False
    anchors = iter(chapter(name).headings)
    for token in _markdown().parse(source(name)):
        if token.type == "heading_open":
            yield Section(name, heading, anchor, " ".join(parts))
            parts, is_heading = [], True
        elif token.type == "inline" and is_heading:
            head = next(anchors)
            heading, anchor, is_heading = head.text, head.anchor, False
        elif token.type == "inline":
            parts.append(_plain(token))
        elif token.type in ("fence", "code_block"):
            parts.append(" ".join(token.content.split()))
    yield Section(name, heading, anchor, " ".join(parts))


@cache
def _markdown() -> MarkdownIt:
    """CommonMark with tables. HTML in a source is shown as text."""
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False}).enable("table")
    # A wide table scrolls in its box, by the keyboard too.
    box = '<div class="table-wrap" tabindex="0"><table class="table">'
    made.add_render_rule("table_open", lambda *_: box)
    made.add_render_rule("table_close", lambda *_: "</table></div>\n")
    made.add_render_rule("fence", _code)
    made.add_render_rule("code_block", _code)
    return made


def _code(_self: object, tokens: Sequence[Token], at: int, *_: object) -> str:
    return f'<pre class="code"><code>{escape(tokens[at].content)}</code></pre>\n'


def _prepared(tokens: Sequence[Token], name: str) -> Iterator[Heading]:
    """Give headings their anchors, links their addresses, and columns classes for styles."""
    seen: dict[str, int] = {}
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            text = _plain(tokens[at + 1])
            anchor = _anchor(text, seen)
            token.attrSet("id", anchor)
            yield Heading(int(token.tag[1:]), text, anchor)
        elif token.type in ("th_open", "td_open") and token.attrs.pop("style", ""):
            token.attrSet("class", "num")
        _link(token.children or (), name)


def _link(tokens: Sequence[Token], name: str) -> None:
    """Point links at other chapters; links to other files of the source become plain text."""
    is_dropped = False
    for token in tokens:
        if token.type == "link_open":
            address = _address(str(token.attrGet("href") or ""), name)
            is_dropped = address is None
            token.attrSet("href", address or "")
        if token.type in ("link_open", "link_close") and is_dropped:
            token.type, token.content, token.nesting = "text", "", 0


def _plain(token: Token) -> str:
    kept = ("text", "code_inline")
    parts = (
        child.content if child.type in kept else " " if child.type.endswith("break") else ""
        for child in token.children or ()
    )
    return "".join(parts)


def _anchor(text: str, seen: dict[str, int]) -> str:
    """As GitHub makes it, so that links in the sources hold in both places."""
    plain = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
    number = seen.get(plain, 0)
    seen[plain] = number + 1
    return f"{plain}-{number}" if number else plain


def _address(href: str, name: str) -> str | None:
    """The address of a link of a chapter; None: it leads to no chapter."""
    path, mark, anchor = href.partition("#")
    if "://" in path or not path.endswith(SUFFIX):
        return href
    target = normpath(PurePosixPath(name).parent / path.removesuffix(SUFFIX))
    return f"{url_of(target)}{mark}{anchor}" if target in names() else None


# Which chapter explains a page: the target of the question mark in the head of each page.

# By the name of the page's address. A page without an entry opens the index.
CHAPTERS = {
    "dashboard": "users/first-job",
    "welcome": "users/first-job",
    "setup": "operators/installation",
    "people": "operators/security",
    "people-add": "operators/security",
    "people-person": "users/quotas",
    "timeline": "users/queue",
    "processes": "users/incidents",
    "process": "users/incidents",
    "gpu": "operators/monitoring",
    "jobs": "users/jobs",
    "job": "users/jobs",
    "job-new": "users/jobs",
    "models": "users/prompts",
    "model": "users/prompts",
    "model-add": "operators/models",
    "shares": "users/quotas",
    "windows": "users/time-windows",
    "window-ask": "users/time-windows",
    "incidents": "users/incidents",
    "incident": "users/incidents",
    "reports": "users/reports",
    "capacity": "operators/capacity",
    "batches": "users/batches",
    "batch": "users/batches",
    "scripts": "users/scripts",
    "script": "users/scripts",
    "idle-work": "operators/idle-work",
    "events": "events",
    "rules": "operators/thresholds",
    "mode": "operators/thresholds",
    "disks": "operators/disks",
    "disk-run": "operators/disks",
    "hosts": "operators/hosts",
    "host": "operators/hosts",
    "status": "operators/runbooks",
    "me": "users/quotas",
    "person": "users/quotas",
    "account": "users/agents",
    "notifications": "users/notifications",
    "api-docs": "reference/rest",
}


def chapter_of(request: HttpRequest) -> str:
    """The address of the chapter about this page."""
    match = request.resolver_match
    name = CHAPTERS.get(match.url_name or "") if match else None
    return url_of(name or INDEX)
