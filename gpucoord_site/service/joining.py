"""A host registers when its service starts, or is refused with a sentence."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from django.db import connection, transaction
from django.utils import timezone
from django.utils.crypto import salted_hmac

from gpucoord_site import __version__
from gpucoord_site.config.settings import Config
from gpucoord_site.config.values import is_loopback
from gpucoord_site.service.startup_checks import UnableToStart
from monitor.facts.readings import JoiningHost
from monitor.gpus.policy import hosts as host_policy
from monitor.gpus.rows import hosts as host_rows
from monitor.journal.rows import events
from monitor.runtime.probes.processes import boot_id

FILE = "host_id"


def join(config: Config, port: int | None, log_port: int | None = None) -> None:
    """Store what this host is. Raises UnableToStart if it may not start.

    port: of its pages; None: it serves none. log_port: where it serves its logs without pages.
    """
    now = timezone.now()
    new = JoiningHost(
        name=config.node,
        instance=instance(config.data),
        key_mark=key_mark(),
        boot_id=boot_id(),
        version=__version__,
        address=_address(config, port),
        profile=config.profile,
        log_address=_address(config, log_port if port is None else port),
    )
    token = config.join_token or ""
    with transaction.atomic():
        has_token = bool(token) and host_rows.is_valid_token(token, now)
        hosts = host_rows.all_hosts()
        problem = host_policy.join_problem(
            new, hosts, now, has_token=has_token, shared=connection.vendor == "postgresql"
        )
        if problem:
            spent = " GPUCOORD_JOIN_TOKEN is unknown, used or expired." if token else ""
            raise UnableToStart(f"{problem}{spent if not has_token else ''}")
        instances = {host.name: host.instance for host in hosts}
        is_new = instances.get(new.name) != new.instance
        if has_token and is_new and not host_rows.use_token(token):
            raise UnableToStart("GPUCOORD_JOIN_TOKEN has just been used by another host.")
        if host_rows.register(new, now):
            text = f"The host {new.name} has joined with gpucoord {new.version}."
            events.add("HOST_JOINED", text, now=now, host=new.name)


def _address(config: Config, port: int | None) -> str:
    return "" if port is None else reachable_address(config, port)


def key_mark() -> str:
    """A digest of the secret key, which says nothing about the key."""
    return salted_hmac("gpucoord.hosts", "key mark", algorithm="sha256").hexdigest()


def instance(data: Path) -> str:
    """The identity of this data folder, made at the first start."""
    path = data / FILE
    if not path.exists():
        draft = data / f".{FILE}.{os.getpid()}"
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_hex(16))
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path.read_text().strip()


def reachable_address(config: Config, port: int) -> str:
    """The address of this host's pages for users and other hosts; "" = only this host has one."""
    if config.public_url:
        return config.public_url
    plain = config.host.strip("[]")
    if is_loopback(plain):
        return ""
    # Compared with, not bound.
    if plain in {"0.0.0.0", "::"}:  # noqa: S104
        plain = config.node
    return f"http://{f'[{plain}]' if ':' in plain else plain}:{port}"
