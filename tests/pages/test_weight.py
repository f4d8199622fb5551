"""How much a browser has to fetch."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from gpucoord_site.config.static_files import static_url

pytestmark = pytest.mark.django_db
ACCEPTS = {"Accept-Encoding": "gzip, br"}


@pytest.mark.parametrize("page", ["/rules/", "/api/openapi.json"])
def test_a_page_is_compressed_for_those_who_accept_it(
    root: User, as_user: Callable[[User], Client], page: str
) -> None:
    plain = as_user(root).get(page)
    answer = as_user(root).get(page, headers=ACCEPTS)

    assert plain.status_code == 200
    assert "Content-Encoding" not in plain.headers
    assert answer["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in answer["Vary"]
    assert len(answer.content) < len(plain.content) / 2
    assert len(gzip.decompress(answer.content)) == pytest.approx(len(plain.content), rel=0.05)


def test_a_static_file_is_compressed(client: Client) -> None:
    answer = client.get(f"{settings.STATIC_URL}app.css", headers=ACCEPTS)

    content = b"".join(answer.streaming_content)  # type: ignore[attr-defined]
    assert gzip.decompress(content) == (Path(settings.ASSETS) / "static/app.css").read_bytes()


@pytest.mark.django_db(transaction=True)
async def test_the_server_s_asynchronous_answers_are_compressed(
    async_client: AsyncClient,
) -> None:
    answer = await async_client.get("/login/", headers=ACCEPTS)

    assert answer["Content-Encoding"] == "gzip"


def test_the_address_of_static_files_changes_with_each_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a")
    before = static_url(tmp_path)
    assert static_url(tmp_path) == before
    (tmp_path / "a.css").write_text("b")

    assert static_url(tmp_path) != before
