from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monitor.facts.readings import HostReading, ProcessReading, Snapshot
from monitor.owners.policy import Viewer, event_text, owns, redact
from tests.monitor import made_readings as facts


def seen_by(viewer: Viewer, **process: str | None) -> ProcessReading:
    row = ProcessReading(gpu_uuid="GPU-1", pid=7, command=("python", "secret.py"), **process)  # type: ignore[arg-type]
    shot = Snapshot(
        seq=1, at=facts.NOW, probe="none", host=HostReading(name="box"), processes=(row,)
    )
    return redact(shot, viewer).processes[0]


def test_it_shows_people_their_own_command_lines() -> None:
    assert seen_by(Viewer("alice"), user="alice").command == ("python", "secret.py")


def test_it_shows_people_the_command_lines_of_their_jobs() -> None:
    assert seen_by(Viewer("alice"), user="nobody", job_owner="alice").command is not None


def test_it_hides_the_command_lines_of_others_but_not_program_and_owner() -> None:
    row = seen_by(Viewer("alice"), user="bob", program="python")
    assert (row.command, row.user, row.program) == (None, "bob", "python")


def test_it_hides_the_command_line_of_an_unknown_owner() -> None:
    assert seen_by(Viewer("alice"), user=None).command is None


def test_it_shows_an_operator_everything() -> None:
    assert seen_by(Viewer("root", operator=True), user="bob").command is not None


@given(facts.snapshots, st.text(max_size=5))
def test_it_never_shows_a_command_line_of_another_user(shot: Snapshot, name: str) -> None:
    viewer = Viewer(name)
    for process in redact(shot, viewer).processes:
        assert process.command is None or owns(process, viewer)


def test_it_hides_why_a_report_failed_from_all_but_operators() -> None:
    text = "The report weekly cannot be made: OSError: /srv/secret is full"

    assert (
        event_text("REPORT_FAILED", text, "", Viewer("bob")) == "The report weekly cannot be made"
    )
    assert event_text("REPORT_FAILED", text, "", Viewer("root", operator=True)) == text
