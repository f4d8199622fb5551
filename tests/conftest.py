"""The cast, the data folder, and what a test needs of the machine."""

from __future__ import annotations

import gc
import glob
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from hypothesis import HealthCheck, settings

from monitor.owners.probes import credentials as runtimes
from scheduler.dispatch.steps import preview
from scheduler.jobs.rows import durations
from scheduler.runner import accounts, files
from tests.browser.chromium import chromium_path
from tests.builders import PASSWORD

# The same examples each time, however slow the machine: what fails here failed before, too.
# HYPOTHESIS_EXAMPLES=1000 looks for new ones.
MORE = int(os.environ.get("HYPOTHESIS_EXAMPLES", "0"))
settings.register_profile(
    "steady",
    max_examples=MORE or 50,
    derandomize=not MORE,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")
# A shell that starts the tests in the background has interrupts ignored, and so would the services
# and commands that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _missing_browser() -> str | None:
    return None if chromium_path() else "Chromium is not installed"


def _missing_postgres() -> str | None:
    found = shutil.which("initdb") or glob.glob("/usr/lib/postgresql/*/bin/initdb")
    return None if found else "PostgreSQL's initdb is not installed"


def _missing_gpu() -> str | None:
    return None if Path("/dev/nvidiactl").exists() else "this machine has no NVIDIA driver"


def _missing_ldap() -> str | None:
    found = shutil.which("slapd") or Path("/usr/sbin/slapd").exists()
    if not found or find_spec("django_auth_ldap") is None:
        return "slapd or the extra ldap is not installed"
    return None


def _missing_slurm() -> str | None:
    if not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "squeue"))):
        return "slurm-wlm or munge is not installed"
    return None if os.geteuid() == 0 else "Slurm runs jobs of several accounts only as root"


def _missing_slurmdbd() -> str | None:
    # The script that makes MariaDB's first database calls the last one.
    programs = ("slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults")
    if not all(map(shutil.which, programs)):
        return "slurmdbd or MariaDB is not installed"
    return _missing_slurm()


def _missing_ffmpeg() -> str | None:
    return None if shutil.which("ffmpeg") else "ffmpeg is not installed"


# It brings 90 packages, so it has an environment of its own, which .ci/run makes.
JUPYTER_LAB = Path(sys.prefix) / "jupyter/bin/jupyter-lab"


def _missing_jupyter() -> str | None:
    return None if JUPYTER_LAB.exists() else f"JupyterLab is not installed at {JUPYTER_LAB}"


def _missing_llama() -> str | None:
    missing = [name for name in ("xllamacpp", "gguf") if find_spec(name) is None]
    return f"{' and '.join(missing)} of the extra `test` is not installed" if missing else None


NEEDS = {
    "llama": _missing_llama,
    "ffmpeg": _missing_ffmpeg,
    "jupyter": _missing_jupyter,
    "slurm": _missing_slurm,
    "slurmdbd": _missing_slurmdbd,
    "ldap": _missing_ldap,
    "browser": _missing_browser,
    "postgres": _missing_postgres,
    "gpu": _missing_gpu,
}


# Tests with these markers need servers, a browser or patience. `pytest` alone leaves them out.
MARKED = ("processes", "browser", "slow", "hostile", "postgres", "ldap", "slurm", "slurmdbd")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--marked",
        action="store_true",
        help="only the tests that `pytest` leaves out when it is given no paths; none that is long",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Without paths the quick tests; with paths all of them that are not long."""
    option = config.option
    any_of = " or ".join(MARKED)
    if option.marked:
        option.markexpr = f"not long and ({any_of})"
    elif config.args_source is pytest.Config.ArgsSource.TESTPATHS and option.markexpr == "not long":
        option.markexpr = f"not long and not ({any_of})"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that may take long come first, then those with many tests.

    A worker takes one file after another, so that the last ones should be short.
    """
    limits: Counter[Path] = Counter()
    tests = Counter(item.path for item in items)
    for item in items:
        if limit := item.get_closest_marker("timeout"):
            limits[item.path] = max(limits[item.path], limit.args[0])
    items.sort(key=lambda item: (-limits[item.path], -tests[item.path]))


def pytest_collection_finish() -> None:
    """Objects of the imports stay: looking through them again costs a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the machine can't do; GPUCOORD_TEST_REQUIRE="browser,postgres" makes it fail."""
    required = os.environ.get("GPUCOORD_TEST_REQUIRE", "").split(",")
    for marker, missing in NEEDS.items():
        if item.get_closest_marker(marker) and (reason := missing()):
            if marker in required:
                pytest.fail(f"{reason}, and GPUCOORD_TEST_REQUIRE asks for it")
            pytest.skip(reason)


def _person(name: str) -> User:
    return User.objects.create_user(name, f"{name}@example.org", PASSWORD)


@pytest.fixture
def alice(db: None) -> User:
    """An ordinary user."""
    return _person("alice")


@pytest.fixture
def bob(db: None) -> User:
    """Another ordinary user."""
    return _person("bob")


@pytest.fixture
def charlie(db: None) -> User:
    """A stranger: logged in, owns nothing."""
    return _person("charlie")


@pytest.fixture
def root(db: None) -> User:
    """The operator."""
    return User.objects.create_superuser("root", "root@example.org", PASSWORD)


@pytest.fixture
def as_user() -> Callable[[User], Client]:
    """A browser in which this person is logged in: as_user(alice).get("/")."""

    def sign_in(user: User) -> Client:
        client = Client()
        client.force_login(user, "django.contrib.auth.backends.ModelBackend")
        return client

    return sign_in


@pytest.fixture
def data(settings: object, tmp_path: Path) -> Iterator[Path]:
    """A data folder of this test's own; settings.DATA points at it.

    The lock files of GPUs are in it too: a job of a test that runs at the same time must not close
    the GPUs of this one.
    """
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    settings.DATA = settings.LOCK_FOLDER = folder  # type: ignore[attr-defined]
    yield folder
    if elsewhere := files.read_json(folder / accounts.REMEMBERED_FOLDER):
        shutil.rmtree(elsewhere["path"])


@pytest.fixture(autouse=True)
def _no_runtime_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker or Podman may run here, with containers of which the tests know nothing."""
    monkeypatch.setattr(runtimes, "SOCKETS", ())


@pytest.fixture(autouse=True)
def _nothing_foreseen() -> None:
    """A test must not see plans and figures of the test before."""
    preview.forget()
    preview.forget_advice()
    durations.calibration.forget()
