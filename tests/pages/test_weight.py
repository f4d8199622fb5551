"""How much a browser has to fetch."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest, StreamingHttpResponse
from django.test import Client, RequestFactory

from gpucoord_site.config.django_values import static_url
from gpucoord_site.http.middleware import Compress

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


def test_an_answer_to_head_has_no_body(rf: RequestFactory) -> None:
    """A server sends what a stream of it yields, before the next answer of the connection."""

    def empty(_request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter(()), content_type="text/css")

    for method, parts in (("HEAD", False), ("GET", True)):
        request = rf.generic(method, f"{settings.STATIC_URL}app.css", HTTP_ACCEPT_ENCODING="gzip")
        answer = Compress(empty)(request)
        assert isinstance(answer, StreamingHttpResponse)
        assert bool(b"".join(answer)) is parts


def test_the_address_of_static_files_changes_with_each_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a")
    before = static_url(tmp_path)
    assert static_url(tmp_path) == before
    (tmp_path / "a.css").write_text("b")

    assert static_url(tmp_path) != before
