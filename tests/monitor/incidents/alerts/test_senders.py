from __future__ import annotations

import json
import logging
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from monitor.incidents.alerts import steps
from monitor.incidents.alerts.senders import (
    Attachment,
    Enclosure,
    NetworkLimits,
    OutgoingMessage,
    Service,
    limited_to,
    send_all,
    service_of,
)
from monitor.incidents.alerts.steps import encrypt
from monitor.models import Channel, Message
from tests.builders import NOW
from tests.monitor.alerts_made import channel
from tests.pace import Stopwatch
from tests.smtp_server import mail_server

# The tests' own servers listen on this machine.
send_here = partial(send_all, reach=NetworkLimits(("127.0.0.0/8", "::1")))


class Hook(BaseHTTPRequestHandler):
    """Takes webhooks; /no answers with an error, /moved with a redirect."""

    got: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.got.append(json.loads(body) | {"auth": self.headers["authorization"]})
        self.send_response({"/no": 500, "/moved": 307}.get(self.path, 200))
        self.send_header("location", "/in")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def hook() -> Iterator[str]:
    Hook.got = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"json://hooker:s3cretpass@127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"json://127.0.0.1:{listening.getsockname()[1]}/?rto=60"


def test_a_webhook_gets_the_message(hook: str) -> None:
    assert send_here({1: OutgoingMessage(f"{hook}/in", "Hog", "95 %", "warning")}, 5) == {1: None}
    (got,) = Hook.got
    assert (got["title"], got["message"], got["type"]) == ("Hog", "95 %", "warning")
    assert got["auth"].startswith("Basic ")


def test_a_webhook_gets_the_attached_file(hook: str) -> None:
    page = Attachment("page.pdf", "application/pdf", b"%PDF")
    message = OutgoingMessage(f"{hook}/in", "Hog", "95 %", enclosure=Enclosure(page))
    said = send_here({1: message}, 5)

    (file,) = Hook.got[0]["attachments"]
    assert said == {1: None}
    assert (file["filename"], file["mimetype"]) == ("page.pdf", "application/pdf")
    assert b64decode(file["base64"]) == b"%PDF"


def test_what_went_wrong_is_told_without_any_part_of_the_address(
    hook: str, capfd: pytest.CaptureFixture[str]
) -> None:
    closed = "json://hooker:s3cretpass@127.0.0.1:1/tokentoken"
    said = send_here(
        {1: OutgoingMessage(f"{hook}/no", "t", "x"), 2: OutgoingMessage(closed, "t", "x")}, 5
    )

    assert "500" in (said[1] or "")
    assert (said[2] or "").endswith("(nothing listens there)")
    told = f"{said} {capfd.readouterr()}"
    for secret in ("s3cretpass", "hooker", "tokentoken", "127.0.0.1:1"):
        assert secret not in told
    assert not logging.getLogger("apprise").propagate


LOCAL = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]", "2130706433", "127.1"]


@pytest.mark.parametrize("host", LOCAL)
@pytest.mark.parametrize("scheme", ["json", "xml", "form", "gotify", "rsyslog"])
def test_a_channel_cannot_reach_this_machine(hook: str, scheme: str, host: str) -> None:
    port = hook.rpartition(":")[2]
    said = send_all(
        {1: OutgoingMessage(f"{scheme}://{host}:{port}/token", "t", "x")}, 5, NetworkLimits()
    )

    assert said[1] is not None
    assert Hook.got == []


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "100.100.100.200", "[fd00:ec2::254]", "[fe80::1]"]
)
def test_a_channel_cannot_reach_metadata_services(host: str) -> None:
    said = send_all({1: OutgoingMessage(f"json://{host}/latest", "t", "x")}, 5, NetworkLimits())

    assert "the setting alerts_allow" in (said[1] or "")


def test_the_setting_allows_only_the_networks_it_names() -> None:
    reach = NetworkLimits(("127.0.0.1", "169.254.0.0/16"))

    assert [reach.allows(a) for a in ("127.0.0.1", "169.254.1.1", "::ffff:127.0.0.1")] == [True] * 3
    assert [reach.allows(a) for a in ("127.0.0.2", "::1", "0.0.0.0", "")] == [False] * 4


@pytest.mark.parametrize("address", ["8.8.8.8", "10.1.2.3", "192.168.1.9", "2606:4700::1"])
def test_public_and_private_addresses_need_no_setting(address: str) -> None:
    assert NetworkLimits().allows(address)


def test_a_redirect_is_not_followed(hook: str) -> None:
    said = send_here({1: OutgoingMessage(f"{hook}/moved", "t", "x")}, 5)

    assert "the setting alerts_follow_redirects may allow that" in (said[1] or "")
    assert len(Hook.got) == 1


def test_a_redirect_is_followed_where_the_settings_allow_it(hook: str) -> None:
    reach = NetworkLimits(("127.0.0.1",), redirects=True)

    assert send_all({1: OutgoingMessage(f"{hook}/moved", "t", "x")}, 5, reach) == {1: None}
    assert len(Hook.got) == 2


def test_other_threads_connect_as_before(hook: str) -> None:
    address = ("127.0.0.1", int(hook.rpartition(":")[2]))
    reached: list[str] = []

    def connect() -> None:
        with socket.create_connection(address) as connection:
            reached.append(connection.getpeername()[0])

    with limited_to(NetworkLimits()), pytest.raises(OSError, match="may not be sent"):
        connect()
    with limited_to(NetworkLimits()):
        other = threading.Thread(target=connect)
        other.start()
        other.join()
    connect()

    assert reached == ["127.0.0.1"] * 2


def test_a_password_is_left_out_as_it_is_written_and_as_it_is_meant() -> None:
    from monitor.incidents.alerts.senders import _redacted

    said = _redacted("mailto://me:p%40ss%2Fword@mail.example.org", "p@ss/word and p%40ss%2Fword")

    assert said == "*** and ***"


def test_one_that_hangs_costs_no_more_than_the_limit_and_holds_up_no_other(
    hook: str, silent: str
) -> None:
    watch = Stopwatch()
    said = send_here(
        {1: OutgoingMessage(silent, "t", "x"), 2: OutgoingMessage(hook, "t", "x")}, 1.5
    )

    assert watch.seconds < 3
    assert said == {1: "No answer within 1.5 s.", 2: None}


@pytest.fixture
def dripping() -> Iterator[str]:
    """Sends a byte of an endless answer every tenth of a second."""

    class Drip(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"x")
                    time.sleep(0.1)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Drip) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"json://127.0.0.1:{server.server_port}/?rto=60"
        server.shutdown()


@pytest.mark.parametrize("server", ["silent", "dripping"])
def test_a_service_that_hangs_keeps_neither_a_thread_nor_a_connection(
    server: str, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue(server)
    before = set(threading.enumerate())

    said = send_here({1: OutgoingMessage(address, "t", "x")}, 1.0)

    assert said == {1: "No answer within 1 s."}
    watch = Stopwatch()
    senders = [t for t in threading.enumerate() if t not in before and "send_one" in t.name]
    while any(thread.is_alive() for thread in senders) and watch.seconds < 5:
        time.sleep(0.05)
    assert senders == [] or not any(thread.is_alive() for thread in senders)


def test_an_address_says_which_service_it_is() -> None:
    assert service_of("json://127.0.0.1:1/x") == Service("JSON", is_mail=False)
    mail = "mailto://u:pw@mail.example.org?from=g@example.org"
    assert service_of(mail) == Service("E-Mail", is_mail=True)
    assert service_of("slack://half") is None
    assert service_of("nonsense") is None


def test_nothing_is_sent_to_an_address_that_is_none() -> None:
    assert "can be used" in (send_here({1: OutgoingMessage("nonsense://x", "t", "x")}, 5)[1] or "")


def test_a_mail_goes_to_the_owner_and_not_to_the_receiver_in_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import smtplib

    sent: list[tuple[Any, ...]] = []

    class Server:
        def __init__(self, *_: object, **__: object) -> None: ...
        def sendmail(self, sender: str, to: Any, text: str) -> None:
            sent.append((sender, to))

        def quit(self) -> None: ...
        def login(self, *_: object) -> None: ...
        def ehlo(self, *_: object) -> None: ...
        def starttls(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr(smtplib, "SMTP", Server)
    address = "mailto://mail.example.org?from=gpus@example.org&to=ops@example.org"

    assert send_here({1: OutgoingMessage(address, "t", "x", receiver="alice@example.org")}, 5) == {
        1: None
    }
    assert sent == [("gpus@example.org", ["alice@example.org"])]


@pytest.mark.django_db
def test_a_test_goes_the_whole_way_to_a_real_webhook(hook: str) -> None:
    ops = channel(encrypted_address=encrypt(f"{hook}/in"))
    steps.write_test(ops, "root", "", NOW)

    assert steps.send_due(send_here, NOW) == 1

    assert Hook.got[0]["title"] == "Test message of gpucoord"
    assert Message.objects.get().state == "sent"
    assert Channel.objects.get().worked_at == NOW


@pytest.mark.parametrize(
    "address",
    [
        f"workflows://example.org/{'a' * 32}/{'b' * 43}/?template={{file}}",
        f"discord://{'1' * 18}/{'a' * 64}/?template={{file}}",
        "tgram://123456789:abcdefg_hijklmnop/12315544/?content=rich&template={file}",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/?template={file}",
        f"workflows://example.org/{'a' * 32}/{'b' * 43}/?template=http://127.0.0.1/x",
    ],
)
def test_an_address_cannot_name_a_file_that_this_server_would_read(
    address: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret.json"
    file.write_text('{"type": "secret"}')
    named = address.format(file=file)

    assert service_of(named.partition("?")[0]) is not None
    assert service_of(named) is None
    said = send_here({1: OutgoingMessage(named, "t", "x")}, 5)[1] or ""
    assert "can be used" in said
    assert "secret" not in said


def test_names_in_a_mail_are_text_and_not_html(tmp_path: Path) -> None:
    name = "<img src=http://example.org/x.png> & <b>bold</b>"
    with mail_server(tmp_path) as server:
        address = f"mailto://127.0.0.1:{server.port}?from=g@example.org&to=o@example.org"
        for extra in ("&mode=insecure", "&mode=insecure&format=html"):
            message = OutgoingMessage(address + extra, f"Job {name}", f"Job {name}\nfailed")
            assert send_here({1: message}, 10) == {1: None}
        plain, as_html = server.mails()

    assert plain.text.splitlines()[:2] == [f"Job {name}", "failed"]
    html = as_html.message.get_body(("html",))
    assert html is not None
    assert "&lt;img" in html.get_content()
    assert "<img" not in html.get_content()


@pytest.mark.parametrize(("extra", "kinds"), [("", {"plain", "html"}), ("&format=text", {"plain"})])
def test_a_mail_has_the_html_with_its_picture_unless_its_address_asks_for_text(
    tmp_path: Path, extra: str, kinds: set[str]
) -> None:
    enclosed = Enclosure(
        Attachment("page.pdf", "application/pdf", b"%PDF"),
        '<p>95 %</p><img src="cid:chart.png" alt="Shares">',
        (Attachment("chart.png", "image/png", b"\x89PNG"),),
    )
    with mail_server(tmp_path) as server:
        address = f"mailto://127.0.0.1:{server.port}?from=g@example.org&to=o@example.org"
        message = OutgoingMessage(
            f"{address}&mode=insecure{extra}", "Hog", "95 %", "info", "", enclosed
        )
        assert send_here({1: message}, 10) == {1: None}
        (mail,) = server.mails()

    parts = {part.get_content_type(): part for part in mail.message.walk()}
    assert {kind for kind in ("plain", "html") if f"text/{kind}" in parts} == kinds
    assert parts["application/pdf"]["Content-Disposition"].startswith("attachment")
    assert mail.text.strip().startswith("95 %")
    picture = parts.get("image/png")
    assert (picture and picture["Content-ID"]) == ("<chart.png>" if "html" in kinds else None)


def test_names_in_a_chat_notify_no_user(hook: str) -> None:
    name = "@everyone @here <!channel> <@U123>"

    send_here({1: OutgoingMessage(f"{hook}/in", name, name)}, 5)

    for text in (Hook.got[0]["title"], Hook.got[0]["message"]):
        assert text == "@\u2060everyone @\u2060here <\u2060!channel> <\u2060@U123>"
