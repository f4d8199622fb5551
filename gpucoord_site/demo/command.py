"""Door of `gpucoord demo`: makes the folder, seeds it, runs `up` on it, leaves nothing behind."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpucoord_site.config import load_config
from gpucoord_site.demo.leaving import clear_up, watch_over

# Settings of the person that hold for a demo too; all others are the demo's own.
KEPT = frozenset(
    f"GPUCOORD_{name}"
    for name in (
        "HOST",
        "PORT",
        "ALLOWED_HOSTS",
        "LOG",
        "NODE",
        "TIME_ZONE",
        "SIMULATED_GPUS",
        "SIMULATED_SEED",
        "ADMIN_USER",
        "ADMIN_PASSWORD",
    )
)
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


def main(argv: Sequence[str]) -> int:
    """Run the demo until Ctrl-C; returns the exit code."""
    options = _options(argv)
    folder = Path(tempfile.mkdtemp(prefix="gpucoord-demo-"))
    watch_over(folder)
    try:
        password = os.environ.get("GPUCOORD_ADMIN_PASSWORD") or secrets.token_urlsafe(9)
        home = _make_home(folder)
        environment = demo_environment(os.environ, folder, password)
        if options.gpus:
            environment["GPUCOORD_SIMULATED_GPUS"] = options.gpus
        os.environ.clear()
        os.environ.update(environment)
        given = {"host": options.host, "port": options.port}
        load_config(**{name: value for name, value in given.items() if value is not None})
        return _run(home, password, **given)
    finally:
        clear_up(folder)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "gpucoord demo",
        description="Start gpucoord with a simulated GPU server, people and jobs. No GPU is"
        " needed; when it ends, nothing of it stays.",
    )
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", help="port to listen on (default: 8000; 0 = any free one)")
    parser.add_argument("--gpus", help="how many GPUs to simulate (default: 8)")
    return parser.parse_args(argv)


def demo_environment(environ: Mapping[str, str], folder: Path, password: str) -> dict[str, str]:
    """The environment without anything that would reach a real installation."""
    ours = {
        name: value
        for name, value in environ.items()
        if name in KEPT or not name.startswith(("GPUCOORD_", "DATABASE_URL"))
    }
    return {
        **ours,
        "GPUCOORD_CONFIG": str(folder / "gpucoord.toml"),
        "GPUCOORD_DATA": str(folder / "data"),
        "GPUCOORD_PROBE": "simulated",
        "GPUCOORD_ADMIN_PASSWORD": password,
        "GPUCOORD_CANCEL_GRACE_S": "3",
        "GPUCOORD_RUN_AS": "auto" if _others_can_run(folder) else "service",
        "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings",
    }


def _others_can_run(folder: Path) -> bool:
    """Whether a job under another account finds python3, and may enter the demo's folder."""
    open_to_all = all(parent.stat().st_mode & 0o001 for parent in folder.parents)
    return open_to_all and shutil.which("python3", path=SYSTEM_PATH) is not None


def _make_home(folder: Path) -> Path:
    """The folder in which the demo's jobs run, open to other accounts; data/ stays closed."""
    folder.chmod(0o711)
    (folder / "gpucoord.toml").write_text("")
    (folder / "data").mkdir(mode=0o700)
    home = folder / "home"
    home.mkdir(mode=0o755)
    for program in (Path(__file__).parent / "programs").glob("*.py"):
        (home / program.name).write_text(program.read_text())
        (home / program.name).chmod(0o644)
    return home


def _run(home: Path, password: str, host: str | None, port: str | None) -> int:
    import django

    django.setup()
    from gpucoord_site.preparing import UnableToStart
    from gpucoord_site.starting import in_a_child, start

    def prepare() -> None:
        from django.conf import settings
        from django.utils import timezone

        from gpucoord_site.demo.seeding import seed
        from gpucoord_site.preparing import prepare_database

        prepare_database()
        seed(settings.CONFIG, home, password, timezone.now())

    try:
        in_a_child(prepare)
    except UnableToStart as error:
        sys.stderr.write(f"gpucoord: {error}\n")
        return 2
    admin = os.environ.get("GPUCOORD_ADMIN_USER") or "admin"
    print("A simulated server: every figure is made up, and nothing stays when it ends.")
    print(f"Log in as {admin} (operator) or alice (user); the password of both: {password}")
    return start(host=host, port=port)
