"""Requests and answers pass the endpoint as they are: headers, status, types, bytes."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from django.conf import settings
from msgspec.structs import replace

from scheduler.language_models.model_proxy.api import exchange
from scheduler.language_models.model_proxy.policy import Limits
from tests.scheduler.language_models.model_proxy.endpoint import (
    ADA,
    CHAT,
    DONE,
    HELLO,
    Asked,
    ModelServer,
    chunked,
    endpoint,
    parse_events,
    token,
    whole,
)  # fmt: skip

JSON = "Content-Type: application/json"


async def test_end_to_end_headers_of_an_answer_reach_the_client() -> None:
    limits = ("Retry-After: 7", "X-Request-Id: r1", "X-RateLimit-Remaining-Tokens: 12",
              "OpenAI-Processing-Ms: 3", "retry-after-ms: 7000")  # fmt: skip
    server = ModelServer(whole(b"{}", JSON, *limits, status="429 Too Many Requests"))
    async with endpoint(server) as stand:
        answer = await stand.ask()

    assert answer.status_code == 429
    got = {name: answer.headers.get(name) for name in (
        "retry-after", "x-request-id", "x-ratelimit-remaining-tokens", "openai-processing-ms",
        "retry-after-ms")}  # fmt: skip
    assert list(got.values()) == ["7", "r1", "12", "3", "7000"]


async def test_headers_of_one_connection_and_of_gpucoords_host_stay_behind() -> None:
    server = ModelServer(
        whole(
            b"{}",
            JSON,
            "Connection: keep-alive, X-Hop",
            "Keep-Alive: timeout=5",
            "X-Hop: 1",
            "Set-Cookie: sessionid=stolen; Path=/",
            "Access-Control-Allow-Origin: *",
            "X-Accel-Redirect: /secret",
            "Server: vllm",
            "Clear-Site-Data: *",
            "X-Kept: 1",
            "WWW-Authenticate: Basic",
        )
    )
    async with endpoint(server) as stand:
        answer = await stand.ask()

    removed = ("keep-alive", "x-hop", "set-cookie", "access-control-allow-origin", "server",
               "x-accel-redirect", "clear-site-data", "www-authenticate")  # fmt: skip
    assert [name for name in removed if name in answer.headers] == []
    assert answer.headers["x-kept"] == "1"
    assert len(answer.headers.get_list("date")) == 1


async def test_headers_of_a_request_reach_the_server_without_those_of_gpucoord() -> None:
    server = ModelServer(whole(CHAT, JSON))
    sent = ADA | {
        "X-Request-Id": "r2", "OpenAI-Beta": "b", "User-Agent": "test", "Cookie": "sessionid=1",
        "X-Api-Key": "ada", "Origin": "https://x.org", "X-Forwarded-For": "10.0.0.1", "X-Hop": "1",
        "X-Gpucoord-Priority": "5", "Connection": "X-Hop", "Prefer": "wait=5",
    }  # fmt: skip
    async with endpoint(server) as stand:
        await stand.ask("chat/completions?beta=true", headers=sent)

    (asked,) = server.asked
    assert asked.line == "POST /v1/chat/completions?beta=true HTTP/1.1"
    kept = {"x-request-id": "r2", "openai-beta": "b", "user-agent": "test"}
    assert kept.items() <= asked.headers.items()
    own = {"authorization", "cookie", "x-api-key", "origin", "x-forwarded-for", "x-hop",
           "x-gpucoord-priority", "connection", "prefer"}  # fmt: skip
    assert own & asked.headers.keys() == set()


async def test_an_answer_in_gzip_says_so() -> None:
    body = gzip.compress(CHAT)
    server = ModelServer(whole(body, JSON, "Content-Encoding: gzip"))
    async with endpoint(server) as stand:
        answer = await stand.ask()

    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize("status", ["301 Moved", "307 Temporary Redirect", "304 Not Modified"])
async def test_a_redirect_is_explained_and_clients_do_not_repeat_it(status: str) -> None:
    server = ModelServer(whole(b"", "Location: http://127.0.0.1:1/api/v1/x", status=status))
    async with endpoint(server) as stand:
        answer = await stand.ask()

    assert answer.status_code == 502
    text = answer.json()["error"]["message"]
    assert "redirects this request to /api/v1/x" in text
    assert "127.0.0.1" not in text
    assert answer.headers["x-should-retry"] == "false"
    assert "location" not in answer.headers
    assert len(server.asked) == 1


async def test_bytes_that_are_no_text_arrive_with_their_type() -> None:
    sound = bytes(range(256)) * 100
    server = ModelServer(whole(sound, "Content-Type: audio/mpeg"))
    async with endpoint(server) as stand:
        answer = await stand.ask("audio/speech", json={"model": "m", "input": "x", "voice": "y"})

    assert answer.content == sound
    assert answer.headers["content-type"] == "audio/mpeg"


@pytest.fixture(autouse=True)
def early_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FIRST_COMMENT_S", 0.05)


async def cold(answer: bytes, path: str = "chat/completions") -> bytes:
    async with endpoint(ModelServer(answer, closes=True)) as stand:
        return await stand.cold(path)


BROKEN = b'data: {"id": "half'


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (whole(CHAT, JSON), "does not stream this request: it answered with application/json"),
        (whole(b"\x00\xff" * 50, "Content-Type: audio/mpeg"), "it answered with audio/mpeg"),
        (whole(b"<html>", "Content-Type: text/html"), "it answered with text/html"),
        (whole(b"x"), "it answered with no content type"),
        (whole(b'{"error": {"message": "too long"}}', JSON, status="400 Bad"), "too long"),
        (whole(b"\xff\xfe\n\n\r", status="500 Dead"), "\ufffd"),
        (whole(b"", "Location: /x", status="307 Moved"), "redirects this request to /x"),
        (chunked(token("a"), BROKEN, ends=False), "The answer broke off"),
        (chunked(token("a"), b"data: x\r", ends=False), "The answer broke off"),
        (whole(gzip.compress(CHAT), "Content-Type: text/event-stream", "Content-Encoding: br"),
         "answered with the encoding 'br'"),
        (whole(b"no gzip", "Content-Type: text/event-stream", "Content-Encoding: gzip"),
         "not in gzip"),
    ],
)  # fmt: skip
async def test_a_stream_that_began_cold_stays_a_stream_of_events(
    answer: bytes, reason: str
) -> None:
    content = await cold(answer)

    *_, (kind, data) = parse_events(content)
    assert kind == "message"
    assert reason in json.loads(data)["error"]["message"]


async def test_a_cold_stream_in_gzip_is_decoded() -> None:
    encoded = gzip.compress(token("a") + DONE)
    head = ("Content-Type: text/event-stream", "Content-Encoding: gzip")
    content = await cold(whole(encoded, *head))

    assert [data for _, data in parse_events(content)][-1] == "[DONE]"


async def test_a_mark_at_the_beginning_of_a_servers_stream_hides_no_event() -> None:
    content = await cold(chunked(b"\xef\xbb\xbf" + token("a"), DONE))

    assert len(parse_events(content)) == 2


@pytest.mark.parametrize("path", ["responses", "messages"])
async def test_errors_in_streams_with_named_events_have_a_name(path: str) -> None:
    content = await cold(chunked(b"event: x\ndata: 1\n\n", BROKEN, ends=False), path)

    *_, (kind, data) = parse_events(content)
    error = json.loads(data)
    assert (kind, error["type"]) == ("error", "error")
    assert "broke off" in error["error"]["message"]
    assert error["message"] == error["error"]["message"]


@pytest.mark.parametrize(
    "pieces",
    [
        (token("a"), BROKEN),
        (token("a")[:20], token("a")[20:], b"data: \xe2\x82"),
        (b"data: 1\r\n\r\ndata: 2\r\r", b"\n: comment"),
        (b"id: 1\ndata", b": 1\n", b"\nevent: x\n"),
    ],
)
async def test_a_hot_stream_that_breaks_off_ends_with_one_whole_error_event(
    pieces: tuple[bytes, ...],
) -> None:
    async with endpoint(ModelServer(chunked(*pieces, ends=False), closes=True)) as stand:
        answer = await stand.stream()

    *_, (_, data) = parse_events(answer.content)
    assert "broke off" in json.loads(data)["error"]["message"]


async def test_a_hot_answer_of_another_type_gets_no_bytes_of_gpucoord() -> None:
    """The client sees that it is incomplete."""
    half = whole(CHAT, JSON)[:-20]
    async with endpoint(ModelServer(half, closes=True)) as stand:
        body = json.dumps(HELLO).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ada\r\nContent-Length: {len(body)}\r\n\r\n"  # noqa: E501
        got = await stand.raw(head.encode() + body)

    assert got.partition(b"\r\n\r\n")[2] == CHAT[:-20]
    assert f"content-length: {len(CHAT)}".encode() in got.lower()


async def test_a_hot_stream_in_gzip_gets_no_plain_error() -> None:
    encoded = gzip.compress(token("a") * 50)[:-30]
    answer = chunked(encoded, ends=False).replace(
        b"Transfer", b"Content-Encoding: gzip\r\nTransfer", 1
    )
    async with endpoint(ModelServer(answer, closes=True)) as stand:
        body = json.dumps(HELLO | {"stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ada\r\nContent-Length: {len(body)}\r\n\r\n"  # noqa: E501
        got = await stand.raw(head.encode() + body)

    assert b"broke off" not in got
    assert not got.endswith(b"0\r\n\r\n")


async def test_a_streams_length_is_not_promised_as_an_error_may_follow() -> None:
    short = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"
    async with endpoint(ModelServer(short + token("a"), closes=True)) as stand:
        answer = await stand.stream()

    assert "content-length" not in answer.headers
    assert "broke off" in parse_events(answer.content)[-1][1]


async def test_an_event_that_is_too_long_to_hold_is_passed_on_as_it_is() -> None:
    image = b"data: " + b"a" * 300_000 + b"\n\n"
    async with endpoint(ModelServer(chunked(image[:100_000], image[100_000:], DONE))) as stand:
        answer = await stand.stream()

    assert answer.content == image + DONE


PAGE = {"Origin": "https://chat.example.org"}
PREFLIGHT = PAGE | {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.mark.parametrize(
    ("origins", "status", "origin"),
    [
        ([], 405, None),
        (["https://other.example.org"], 405, None),
        (["https://chat.example.org"], 204, PAGE["Origin"]),
        (["*"], 204, PAGE["Origin"]),
    ],
)
async def test_pages_of_listed_origins_may_use_the_endpoint(
    origins: list[str], status: int, origin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(settings.CONFIG, models_cors_origins=origins)
    monkeypatch.setattr(settings, "CONFIG", config)
    async with endpoint(ModelServer(whole(b"{}", JSON))) as stand:
        asked = await stand.request("OPTIONS", "chat/completions", headers=PREFLIGHT)
        answer = await stand.ask(headers=ADA | PAGE)
        refused = await stand.ask(headers=PAGE)

    assert asked.status_code == status
    answers = (asked, answer, refused)
    assert [each.headers.get("access-control-allow-origin") for each in answers] == [origin] * 3
    if origin:
        assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
        assert answer.headers["vary"] == "Origin"


async def test_a_token_in_x_api_key_counts_as_anthropics_clients_send_it() -> None:
    async with endpoint(ModelServer(whole(b"{}", JSON))) as stand:
        good = await stand.ask("messages", headers={"x-api-key": "ada"})
        bad = await stand.ask("messages", headers={"x-api-key": "eve"})

    assert (good.status_code, bad.status_code) == (200, 401)
    assert bad.json()["type"] == "error"
    assert bad.json()["error"]["type"] == "authentication_error"


async def test_an_encoded_body_is_refused() -> None:
    async with endpoint(ModelServer(whole(b"{}"))) as stand:
        headers = ADA | {"Content-Encoding": "gzip"}
        answer = await stand.ask(content=gzip.compress(b"{}"), headers=headers)

    assert answer.status_code == 415


PATHS = ["chat/completions", "completions", "responses", "messages", "messages/count_tokens",
         "embeddings", "rerank", "moderations", "audio/speech", "images/generations"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_each_path_that_names_a_model_is_passed_on(path: str) -> None:
    server = ModelServer(whole(b"{}", JSON))
    async with endpoint(server) as stand:
        answer = await stand.ask(path)

    assert answer.status_code == 200
    assert server.asked[0].line == f"POST /v1/{path} HTTP/1.1"
    assert json.loads(server.asked[0].body) == HELLO


FORMS = ["audio/transcriptions", "audio/translations", "images/edits", "images/variations"]
SOUND = bytes(range(256)) * 4096


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_form_passes_with_its_file_whatever_the_order(path: str, is_first: bool) -> None:
    server = ModelServer(whole(b"{}", JSON))
    boundary = b"--b123"
    model = boundary + b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    file = (
        boundary + b'\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        b"Content-Type: audio/wav\r\n\r\n" + SOUND + b"\r\n"
    )
    body = (model + file if is_first else file + model) + boundary + b"--\r\n"
    headers = ADA | {"Content-Type": 'multipart/form-data; boundary="b123"'}
    async with endpoint(server) as stand:
        answer = await stand.ask(path, content=body, headers=headers)

    assert answer.status_code == 200, answer.text
    (asked,) = server.asked
    assert asked.body == body
    assert asked.headers["content-type"] == headers["Content-Type"]


@pytest.mark.parametrize("name", ["M", "m:latest", "gpt-4o", "GPT-4O"])
async def test_a_server_gets_its_own_name_for_an_alias(name: str) -> None:
    server = ModelServer(whole(b"{}", JSON))
    async with endpoint(server) as stand:
        stand.aliases = ("gpt-4o",)
        stand.show()
        plain = await stand.ask(json=HELLO | {"model": name, "x": [1.5, "é", None]})
        form = await stand.ask(
            "audio/transcriptions", files={"file": ("a.wav", SOUND)}, data={"model": name}
        )

    assert (plain.status_code, form.status_code) == (200, 200)
    assert json.loads(server.asked[0].body) == HELLO | {"x": [1.5, "é", None]}
    assert b'name="model"\r\n\r\nm\r\n' in server.asked[1].body
    assert SOUND in server.asked[1].body


async def test_a_form_that_is_too_large_or_broken_is_refused() -> None:
    server = ModelServer(whole(b"{}", JSON))
    kind = ADA | {"Content-Type": "multipart/form-data; boundary=b"}
    async with endpoint(server, limits=Limits(upload=1000)) as stand:
        large = await stand.ask("audio/transcriptions", files={"file": ("a", b"x" * 2000)})
        ended = await stand.ask("audio/transcriptions", content=b"--b\r\n\r\n1", headers=kind)
        twice = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n' * 2 + b"--b--"
        double = await stand.ask("audio/transcriptions", content=twice, headers=kind)
        nameless = await stand.ask("audio/transcriptions", content=b"--b--", headers=kind)
        other = await stand.ask("embeddings", content=b"--b--", headers=kind)

    codes = [answer.status_code for answer in (large, ended, double, nameless, other)]
    assert codes == [413, 400, 400, 400, 415]
    assert server.asked == []


async def test_a_new_model_is_looked_up_before_it_is_refused() -> None:
    server = ModelServer(whole(b"{}", JSON))
    async with endpoint(server) as stand:
        stand.book.later = lambda: stand.show(names=("m", "new"))
        new = await stand.ask(json=HELLO | {"model": "new"})
        unknown = await stand.ask(json=HELLO | {"model": "other"})

    assert (new.status_code, unknown.status_code) == (200, 404)
    assert "Models: m, new." in unknown.json()["error"]["message"]


async def test_a_server_may_answer_before_it_has_read_a_form() -> None:
    async def refuses(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b'{"error": "no"}', JSON, status="413 Too Large"))

    class Hasty(ModelServer):
        async def connected(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await refuses(Asked("", {}, b""), writer)
            await writer.drain()
            await asyncio.sleep(5)
            writer.close()

    async with endpoint(Hasty(b"")) as stand:
        answer = await stand.ask(
            "audio/transcriptions", files={"file": ("a", b"x" * 8_000_000)}, data={"model": "m"}
        )

    assert answer.status_code == 413
