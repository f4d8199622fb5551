"""The folders that forms list: those that the user's account may read, and no others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from msgspec.structs import replace

from scheduler.models import ScriptDefinition
from scheduler.runner.accounts import Account
from scheduler.runner.commands import list_folders
from scheduler.runner.programs import folders

AsUser = Callable[[User], Client]
OWN = Account(name="service", home="/")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Folders a and b, a hidden one, a file, and a link to a folder."""
    top = tmp_path / "tree"
    for name in ("b", "a", ".hidden"):
        (top / name).mkdir(parents=True)
    (top / "file.txt").write_text("x")
    (top / "link").symlink_to(top / "a")
    return top


def test_folders_are_listed_by_name_without_links_files_and_hidden_ones(
    tree: Path, tmp_path: Path
) -> None:
    seen = list_folders(str(tree), OWN, tmp_path / "closed")
    assert (seen.path, seen.parent, seen.folders) == (str(tree), str(tmp_path), ("a", "b"))
    assert not seen.has_more


def test_of_a_file_and_of_a_missing_folder_the_nearest_folder_is_listed(
    tree: Path, tmp_path: Path
) -> None:
    for path in (tree / "file.txt", tree / "not" / "there", tree / "a" / ".." / "file.txt"):
        assert list_folders(str(path), OWN, tmp_path / "closed").path == str(tree)


def test_the_folder_of_gpucoord_is_not_listed_also_through_a_link(
    tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "way").symlink_to(tree)
    for path in (tree, tree / "a", tmp_path / "way", tmp_path / "way" / "a"):
        seen = list_folders(str(path), OWN, tree)
        assert (seen.folders, seen.problem) == ((), "gpucoord does not list it.")
    assert list_folders(str(tmp_path), OWN, tree).problem == ""


def test_the_number_of_folders_is_limited(tree: Path) -> None:
    seen: dict[str, Any] = folders.listing(str(tree), "/closed", 1)
    assert (seen["folders"], seen["more"]) == (["a"], True)


def test_names_that_are_no_text_are_left_out(tree: Path) -> None:
    (tree / "two\nlines").mkdir()
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff")).mkdir()
    assert json.loads(json.dumps(folders.listing(str(tree), "/closed", 9)))["folders"] == ["a", "b"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_account_sees_what_it_may_read(tree: Path, tmp_path: Path) -> None:
    for above in (tree, *tree.parents[:-2]):
        above.chmod(0o755)
    (tree / "a").chmod(0o700)
    other = Account(name="other", home="/", uid=54321, gid=54321)
    assert list_folders(str(tree), other, tmp_path / "closed").folders == ("a", "b")
    seen = list_folders(str(tree / "a"), other, tmp_path / "closed")
    assert (seen.folders, seen.problem) == ((), "Permission denied.")


@pytest.mark.django_db
def test_the_page_lists_the_folders_of_the_value_of_a_field(
    tree: Path, data: Path, root: User, as_user: AsUser
) -> None:
    query = {"field": "script_args.input", "script_args.input": str(tree)}
    html = as_user(root).get("/folders/", query).content.decode()
    assert f'data-folder="{tree}/a"' in html
    assert f'data-folder="{tree.parent}"' in html


@pytest.mark.django_db
def test_a_user_without_an_account_here_is_told_so(
    data: Path, alice: User, as_user: AsUser, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.runner.accounts.os.geteuid", lambda: 0)
    settings.CONFIG = replace(settings.CONFIG, run_as="auto")
    html = as_user(alice).get("/folders/").content.decode()
    assert "OS account" in html
    assert "data-folder" not in html


@pytest.mark.django_db
def test_fields_of_paths_offer_folders_and_others_do_not(
    data: Path, alice: User, as_user: AsUser
) -> None:
    texts = {name: {"type": "string", "pattern": "^/"} for name in ("from", "to")}
    schema = {"properties": texts | {"name": {"type": "string"}}}
    ScriptDefinition.objects.create(name="copy", argv=["true", "{from}"], schema=schema)

    html = as_user(alice).get("/scripts/copy/").content.decode()

    assert html.count("Choose a folder") == 2
    assert 'name="script_args.name"' in html
