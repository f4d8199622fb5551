"""Door of `gpucoord demo`: makes the folder, seeds it, runs `up` on it, and removes everything.

However the demo ends, its jobs are killed and its folder is removed. The cleanup also runs in a
small process of its own, which waits for a demo that was killed.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from gpucoord_site.cli.commands import arg, command
from gpucoord_site.config import file
from gpucoord_site.config.settings import load_config
from scheduler.runner import files, process_tree

PATIENCE_S = 5.0
PAUSE_S = 0.05
JOB_VARIABLE = b"GPUCOORD_NONCE="
# So long no job must appear.
CALM_S = 0.5


def watch_over(folder: Path) -> None:
    """Fork a process that cleans up if this one is killed."""
    parent = os.pidfd_open(os.getpid())
    if os.fork():
        os.close(parent)
        return
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _let_go_of_streams()
        select.select([parent], [], [])
        clear_up(folder)
    finally:
        os._exit(0)


def _let_go_of_streams() -> None:
    """Close the output, so that the reader of a pipe sees its end."""
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def clear_up(folder: Path) -> None:
    """End every job of this folder, then remove it.

    A killed service may still write there for a moment, so this repeats until the folder is gone.
    """
    deadline = time.monotonic() + PATIENCE_S
    while _end_jobs(folder / "data") and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)
    deadline = time.monotonic() + PATIENCE_S
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
        _end_jobs(folder / "data")
        shutil.rmtree(folder, ignore_errors=True)
    # Without the folder no job starts any more. One that began while it was removed has left no
    # file that names it.
    calm = time.monotonic() + CALM_S
    while time.monotonic() < calm:
        if _end_unrecorded_jobs(folder):
            calm = time.monotonic() + CALM_S
        time.sleep(PAUSE_S)


def _end_jobs(data: Path) -> int:
    """Send SIGKILL to remaining jobs, runners first; returns their number."""
    killed = 0
    for attempt in (data / "jobs").glob("*/*"):
        started = files.read_json(attempt / files.STARTED)
        if started is None or (attempt / files.RESULT).exists():
            continue
        for role in ("guardian", "runner"):
            process = started.get(f"{role}_pid", 0), started.get(f"{role}_start_ticks", 0)
            killed += bool(process[0]) and process_tree.signal_one(*process, signal.SIGKILL)
        left = process_tree.orphans(started["pid"], started["start_ticks"], started["nonce"])
        process_tree.signal_all(left, signal.SIGKILL)
        killed += len(left)
    return killed


def _end_unrecorded_jobs(folder: Path) -> int:
    """SIGKILL the jobs that know this folder from their environment. How many."""
    mark = b"=" + os.fsencode(folder) + b"/"
    killed = 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        ticks = process_tree.start_ticks_of(pid)
        try:
            variables = path.read_bytes()
        except OSError:
            continue
        if ticks is not None and JOB_VARIABLE in variables and mark in variables:
            killed += process_tree.signal_one(pid, ticks, signal.SIGKILL)
    return killed


# Settings of the user that also apply to a demo; all others are set by the demo.
KEPT = frozenset(
    f"GPUCOORD_{name}"
    for name in (
        "HOST",
        "PORT",
        "MODELS_PORT",
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


@command(
    "demo",
    "Start gpucoord with a simulated GPU server, users and jobs. No GPU is needed. All its data is"
    " removed when it ends.",
    arg("--host=", "address to listen on (default: 127.0.0.1)"),
    arg("--port=", "port to listen on (default: 8000, or a free one; 0: any)"),
    arg("--gpus=", "how many GPUs to simulate (default: 8)"),
)
def demo(options: Namespace) -> int:
    """Run the demo until Ctrl-C; returns the exit code."""
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
        file.hide()
        address = {"host": options.host, "port": options.port}
        load_config(**{name: value for name, value in address.items() if value is not None})
        return _run(home, password, **address)
    finally:
        clear_up(folder)


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
        # The memory of the machine is no part of the demo: its history is that of a larger one.
        # Idle work must not take long to begin.
        "GPUCOORD_POLICY": '{"idle": {"idle_seconds": 20}, "host": {"from_history": false}}',
        "GPUCOORD_RUN_AS": "nobody" if _others_can_run(folder) else "service",
        "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings",
    }


def _others_can_run(folder: Path) -> bool:
    """Whether a job under another account finds python3 and can enter the folder."""
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
    from gpucoord_site.demo.usage import active
    from gpucoord_site.service.startup import in_a_child, start
    from gpucoord_site.service.startup_checks import UnableToStart

    def prepare() -> None:
        from django.conf import settings
        from django.utils import timezone

        from gpucoord_site.demo.seeding import seed
        from gpucoord_site.service.startup_checks import prepare_database

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
    with active(home):
        return start(host=host, port=port)
