"""The chapters below /docs/, their search, and `gpucoord help TOPIC`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from gpucoord_site.cli import main
from gpucoord_site.documentation import library
from gpucoord_site.documentation.library import CHAPTERS
from monitor.models import OsAccount
from monitor.owners import rows
from tests.builders import NOW
from tests.service.test_papers import _anchors

DOCS = library.FOLDER
NAMES = sorted(library.names())
AsUser = Callable[[User], Client]


@pytest.mark.parametrize("name", NAMES)
def test_each_chapter_has_a_title_and_anchors_as_its_links_name_them(name: str) -> None:
    chapter = library.chapter(name)

    assert chapter.html.startswith("<h1 id=")
    assert {heading.anchor for heading in chapter.headings} <= _anchors(DOCS / f"{name}.md")


@pytest.mark.parametrize("name", NAMES)
def test_links_between_chapters_lead_to_pages(name: str) -> None:
    links = re.findall(r'href="([^"]*)"', library.chapter(name).html)
    inside = [link.partition("#") for link in links if "://" not in link]
    here = library.url_of(name)

    assert [link for link in inside if link[2] not in _all_anchors().get(link[0] or here, ())] == []


@cache
def _all_anchors() -> dict[str, set[str]]:
    return {
        library.url_of(name): {"", *(heading.anchor for heading in library.chapter(name).headings)}
        for name in NAMES
    }


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_chapter_needs_more_than_the_strict_csp(name: str) -> None:
    assert not re.search(r"<script|<style| style=| on[a-z]+=", library.chapter(name).html)


def test_columns_of_numbers_keep_their_alignment_without_styles() -> None:
    tokens = library._markdown().parse("| a | b |\n| --- | ---: |\n| x | 1 |\n")
    list(library._prepared(tokens, library.INDEX))

    html = library._markdown().renderer.render(tokens, library._markdown().options, {})

    assert '<td class="num">1</td>' in html


def test_markup_in_a_source_is_text() -> None:
    html = library._markdown().render("<b>x</b> [y](javascript:alert(1))\n\n    <i>\n")

    assert "<b>" not in html
    assert "<i>" not in html
    assert "href" not in html


def test_search_finds_sections_with_all_words_and_headings_first() -> None:
    hits = library.search("os account login")

    assert hits
    assert all(hit.url.startswith("/docs/") for hit in hits)
    assert library.search("checkpoints preemption")[0].url.startswith("/docs/users/preemption/")
    assert library.search("heckpoints") == []
    assert library.search("no-such-word-anywhere") == []
    assert library.search("  ") == []


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("first-job", "users/first-job"),
        ("users/first-job", "users/first-job"),
        ("operators/models.md", "operators/models"),
        ("Glossary", "glossary"),
    ],
)
def test_a_topic_is_found_by_its_name_or_the_last_part(topic: str, name: str) -> None:
    assert library.find(topic) == name


@pytest.mark.parametrize(
    "topic", ["../README", "/etc/passwd", "users", "", "users/../../CHANGELOG"]
)
def test_only_chapters_are_topics(topic: str) -> None:
    with pytest.raises(library.NoChapter):
        library.find(topic)


def test_help_prints_the_chapter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main._help(["first", "job"]) == 0
    assert capsys.readouterr().out == (DOCS / "users/first-job.md").read_text()


def test_help_lists_the_topics_and_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main._help(["topics"]) == 0
    out = capsys.readouterr().out
    assert all(entry.name in out for entry in library.index())

    assert main._help(["preemtion"]) == 2
    assert "Did you mean preemption?" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(CHAPTERS))
def test_the_question_mark_of_each_page_has_a_chapter(name: str) -> None:
    assert CHAPTERS[name] in NAMES


@pytest.mark.django_db
class TestPages:
    def test_a_chapter_is_a_page_of_the_site(self, alice: User, as_user: AsUser) -> None:
        answer = as_user(alice).get("/docs/users/first-job/")

        shown = answer.content.decode()
        assert answer.status_code == 200
        assert '<a href="/docs/users/first-job/" aria-current="page">' in shown
        assert "Content-Security-Policy" in answer.headers

    @pytest.mark.parametrize("path", ["/docs/", "/docs/?q=quota", "/docs/?q=<x>", "/docs/events/"])
    def test_index_search_and_top_chapters_answer(
        self, path: str, alice: User, as_user: AsUser
    ) -> None:
        shown = as_user(alice).get(path)

        assert shown.status_code == 200
        assert "<x>" not in shown.content.decode()

    @pytest.mark.parametrize("path", ["/docs/none/", "/docs/../CHANGELOG/", "/docs/users/"])
    def test_another_path_is_not_found(self, path: str, alice: User, as_user: AsUser) -> None:
        assert as_user(alice).get(path).status_code == 404

    def test_strangers_log_in_first(self, client: Client) -> None:
        assert client.get("/docs/").status_code == 302

    def test_the_command_line_is_filled_in(
        self, alice: User, as_user: AsUser, settings: object
    ) -> None:
        OsAccount.objects.filter(user=alice).delete()
        rows.assign(alice, "games", NOW, "")

        shown = as_user(alice).get("/docs/command-line/").content.decode()

        assert "ssh games@" in shown
        assert "export GPUCOORD_URL=http://testserver" in shown
        assert "gpucoord why" in shown

    def test_without_an_os_account_the_page_names_the_token(
        self, alice: User, as_user: AsUser
    ) -> None:
        OsAccount.objects.filter(user=alice).delete()

        shown = as_user(alice).get("/docs/command-line/").content.decode()

        assert 'id="on-server"' not in shown
        assert "No OS account of this server logs you in" in shown

    def test_the_question_mark_opens_the_chapter_of_the_page(
        self, alice: User, as_user: AsUser
    ) -> None:
        shown = as_user(alice).get(reverse("disks")).content.decode()

        assert '<a class="icon-button" href="/docs/operators/disks/"' in shown


def test_the_wheel_contains_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()

    assert '"docs" = "gpucoord_site/docs"' in text
