"""Owners of real processes in namespaces and changed roots, as the kernel describes them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from monitor.facts.readings import ProcessIdentity
from monitor.gpus.sampling.probes.host import Identities
from tests.processes.service import wait_until

PERSON = 24_601
SLEEP = ("sleep", "60")


def _may(*command: str) -> bool:
    try:
        return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not _may("unshare", "-m") or not _may("setpriv", f"--reuid={PERSON}"),
    reason="only root makes mount namespaces for other accounts",
)
AS_PERSON = ("setpriv", f"--reuid={PERSON}", f"--regid={PERSON}", "--clear-groups")


@pytest.fixture
def owner_of_sleep() -> Iterator[Callable[..., ProcessIdentity]]:
    """Starts a command that ends in `sleep`, and looks that process up."""
    identities = Identities(0.0)
    with ExitStack() as stack:

        def start(*command: str) -> ProcessIdentity:
            process = subprocess.Popen([*command, *SLEEP], start_new_session=True)
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            pid = process.pid
            wait_until(lambda: _last(pid) is not None, 10, "the process sleeps")
            pid = _last(pid) or pid
            return identities.of([pid])[pid]

        yield start


def _last(pid: int) -> int | None:
    """The process that sleeps: this one, or its only child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pid = int(children[0]) if children else pid
    return pid if Path(f"/proc/{pid}/comm").read_text() == "sleep\n" else None


def test_a_process_with_the_mounts_of_the_host_belongs_to_its_uid(
    owner_of_sleep: Callable[..., ProcessIdentity],
) -> None:
    assert owner_of_sleep(*AS_PERSON).user == f"uid {PERSON}"


def test_a_uid_among_other_mounts_names_no_person(
    owner_of_sleep: Callable[..., ProcessIdentity],
) -> None:
    found = owner_of_sleep("unshare", "-m", *AS_PERSON)
    assert (found.uid, found.user) == (PERSON, None)


def test_a_uid_below_another_root_names_no_person(
    owner_of_sleep: Callable[..., ProcessIdentity], tmp_path: Path
) -> None:
    bind = 'mount --rbind / "$0" && exec chroot --userspec="$1:$1" "$0" sleep 60'
    found = owner_of_sleep("unshare", "-m", "sh", "-c", bind, str(tmp_path), str(PERSON))
    assert (found.uid, found.user) == (PERSON, None)


def test_a_changed_root_in_the_mounts_of_the_host_names_no_person(
    owner_of_sleep: Callable[..., ProcessIdentity],
) -> None:
    """/usr as the root: its libraries are found as on hosts with merged folders."""
    if not _may("chroot", f"--userspec={PERSON}:{PERSON}", "/usr"):
        pytest.skip("programs do not start below /usr")
    found = owner_of_sleep("chroot", f"--userspec={PERSON}:{PERSON}", "/usr")
    assert (found.uid, found.user) == (PERSON, None)


def test_a_namespace_belongs_to_the_person_who_made_it(
    owner_of_sleep: Callable[..., ProcessIdentity],
) -> None:
    if not _may(*AS_PERSON, "unshare", "-Ur"):
        pytest.skip("persons may not make user namespaces")
    made = owner_of_sleep(*AS_PERSON, "sh", "-c", "unshare -Ur sleep 60; true")
    assert made.user == f"uid {PERSON}"

    entered = owner_of_sleep("sh", "-c", f"nsenter -U -t {made.pid} sleep 60; true")
    assert (entered.uid, entered.user) == (PERSON, None)
