"""A mail server as a process of its own: it keeps each mail as a file.

`python -m tests.smtp_server FOLDER` prints its port. It refuses receivers named `refused`.
"""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[1]


class Session(socketserver.StreamRequestHandler):
    """One connection, RFC 5321 as far as a sender needs it."""

    def handle(self) -> None:
        self.sender, self.receivers = "", list[str]()
        self._say("220 mail.test")
        while line := self.rfile.readline().decode().strip():
            verb, _, rest = line.partition(" ")
            if verb.upper() == "QUIT":
                self._say("221 bye")
                return
            self._say(self._answer(verb.upper(), rest))

    def _answer(self, verb: str, rest: str) -> str:
        address = rest.partition("<")[2].partition(">")[0]
        if verb == "MAIL":
            self.sender, self.receivers = address, []
        elif verb == "RCPT" and address.startswith("refused"):
            return "550 no such mailbox"
        elif verb == "RCPT":
            self.receivers.append(address)
        elif verb == "DATA":
            self._keep()
        elif verb not in {"EHLO", "HELO", "RSET", "NOOP"}:
            return "502 not implemented"
        return "250 ok"

    def _keep(self) -> None:
        self._say("354 go on")
        lines = list(iter(self.rfile.readline, b".\r\n"))
        text = b"".join(line.removeprefix(b".") for line in lines)
        folder = cast("Server", self.server).folder
        number = len(list(folder.glob("*.json")))
        (folder / f"{number}.eml").write_bytes(text)
        envelope = json.dumps({"sender": self.sender, "receivers": self.receivers})
        (folder / f"{number}.json").write_text(envelope)

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


class Server(socketserver.TCPServer):
    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Session)
        self.folder = folder


@dataclass(frozen=True, slots=True)
class Mail:
    sender: str
    receivers: list[str]
    message: EmailMessage

    @property
    def text(self) -> str:
        body = self.message.get_body(("plain", "html"))
        return "" if body is None else str(body.get_content())


@dataclass(frozen=True, slots=True)
class MailServer:
    port: int
    folder: Path

    def mails(self) -> list[Mail]:
        """The received mails, oldest first."""
        return [_mail(path) for path in sorted(self.folder.glob("*.json"))]


def _mail(envelope: Path) -> Mail:
    message = message_from_bytes(
        envelope.with_suffix(".eml").read_bytes(), policy=policy.default.clone()
    )
    return Mail(**json.loads(envelope.read_text()), message=cast("EmailMessage", message))


@contextmanager
def mail_server(folder: Path) -> Iterator[MailServer]:
    """The running server, whose mails are kept in the folder."""
    words = [sys.executable, "-m", "tests.smtp_server", str(folder)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield MailServer(int(process.stdout.readline()), folder)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    with Server(Path(sys.argv[1])) as made:
        sys.stdout.write(f"{made.server_address[1]}\n")
        sys.stdout.flush()
        made.serve_forever()
