from __future__ import annotations

from tests.tools import reference


def test_the_committed_reference_is_what_the_code_says() -> None:
    pages = reference.pages()
    outdated = [
        name for name, text in pages.items() if (reference.FOLDER / name).read_text() != text
    ]

    assert outdated == [], "run: python -m tests.tools.reference"
    assert {path.name for path in reference.FOLDER.iterdir()} == set(pages)


def test_the_reference_names_no_folder_of_this_machine() -> None:
    texts = "".join(reference.pages().values())

    assert str(reference.FOLDER.parents[1]) not in texts
    assert "/root/" not in texts
