"""`gpucoord up`, step by step: check, prepare the database, say where the pages are, supervise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from django.conf import settings

from gpucoord_site import __version__, loops
from gpucoord_site.addresses import own_names
from gpucoord_site.config import Config, ConfigError, load_config
from gpucoord_site.first_admin import make_first_admin
from gpucoord_site.leftovers import end_leftovers
from gpucoord_site.preparing import (
    UnableToStart,
    bind,
    check_nvml,
    lock_data_folder,
    lock_folder_problem,
    make_lock_folder,
    prepare_database,
)
from gpucoord_site.up import Supervisor


def start(**options: Any) -> int:
    """Run gpucoord until a signal; returns the exit code. Options that are None don't count."""
    try:
        config = _configure(options)
        lock = lock_data_folder(config.data)
        make_lock_folder(config.locks)
        end_leftovers(config.data / "run")
        listening = bind(config.host, config.port)
        in_a_child(lambda: _prepare(config), meanwhile=_load)
    except (ConfigError, UnableToStart) as error:
        sys.stderr.write(f"gpucoord: {error}\n")
        return 2
    if problem := lock_folder_problem(config.locks):
        sys.stderr.write(f"gpucoord: {problem}\n")
    address = _address(config.host, listening.getsockname()[1])
    supervisor = Supervisor(listening, address, lock)
    supervisor.start()
    _say(f"gpucoord {__version__} is at {address} (Ctrl-C stops it)")
    return supervisor.run()


def _configure(options: dict[str, Any]) -> Config:
    """The settings with the command line's options; what is forked later sees them too."""
    config = load_config(**{key: value for key, value in options.items() if value is not None})
    settings.CONFIG = config
    settings.ALLOWED_HOSTS = [*config.allowed_hosts, *own_names(config.host)]
    return config


def _prepare(config: Config) -> None:
    if config.require_nvml:
        check_nvml()
    prepare_database()
    if password := make_first_admin(config):
        _say(f"Log in as {config.admin_user} with the password {password} (shown only now).")


def _load() -> None:
    """Import what the children run before they are forked: so they share it, and start quicker."""
    loops.preload()
    # What can't be imported fails in the web process, where it is told.
    with suppress(Exception):
        import_module(settings.ROOT_URLCONF)


def in_a_child(action: Callable[[], None], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Run what needs much memory, or the GPU's driver, where it leaves nothing behind."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            action()
        except UnableToStart as error:
            os.write(writer, str(error).encode())
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    meanwhile()
    with os.fdopen(reader) as pipe:
        problem = pipe.read()
    _, status = os.waitpid(pid, 0)
    if problem or status:
        raise UnableToStart(problem or "The preparation of the database ended unexpectedly.")


def _address(host: str, port: int) -> str:
    """What to type into a browser: this machine's name where gpucoord listens everywhere."""
    plain = host.strip("[]")
    if plain in {"0.0.0.0", "::"}:  # noqa: S104 - compared with, not bound
        plain = os.uname().nodename
    return f"http://{f'[{plain}]' if ':' in plain else plain}:{port}/"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
