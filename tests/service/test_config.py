from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpucoord_site.config.settings import ConfigError, load_config, rules
from gpucoord_site.config.values import OTHER_VARIABLES, variables

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("GPUCOORD_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPUCOORD_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def _problem(**overrides: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(**overrides)
    return str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of another account is made by root")
def test_settings_that_another_account_has_planted_in_a_data_folder_are_refused(
    tmp_path: Path,
) -> None:
    """As in a data folder in /tmp, which another account has made before."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "gpucoord.toml").write_text('run_as = "service"\n')
    for path in (folder, folder / "gpucoord.toml"):
        os.chown(path, 12346, -1)
    assert load_config().run_as == "service"

    tmp_path.chmod(0o1777)

    assert "belongs to another account" in _problem()


def test_every_default_works() -> None:
    config = load_config()

    assert (config.host, config.port, config.node != "") == ("127.0.0.1", 8000, True)


def test_the_environment_wins_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gpucoord.toml").write_text('port = 9001\nnode = "filed"\n')
    monkeypatch.setenv("GPUCOORD_PORT", "9002")

    config = load_config()

    assert (config.port, config.node) == (9002, "filed")


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_PORT", "9002")

    assert load_config(port=9003).port == 9003


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("GPUCOORD_PORT", "80x", 'is "80x": it must be a whole number from 0 to 65535.'),
        ("GPUCOORD_PORT", "65536", 'is "65536": it must be a whole number from 0 to 65535.'),
        ("GPUCOORD_PORT", "80.5", 'is "80.5": it must be a whole number from 0 to 65535.'),
        ("GPUCOORD_PROBE", "nvlm", 'is "nvlm": it must be one of nvml, simulated, none.'),
        ("GPUCOORD_HTTPS", "maybe", 'is "maybe": it must be true or false.'),
        ("GPUCOORD_NODE", "  ", 'is "  ": it must be text of 1 to 100 characters.'),
        ("GPUCOORD_RAW_HOURS", "0", 'is "0": it must be a number above 0 and at most 48.'),
        ("GPUCOORD_RAW_HOURS", "nan", 'is "nan": it must be a number above 0 and at most 48.'),
        ("GPUCOORD_MEMORY_MARGIN_MIB", "-1", "it must be a whole number of at least 0."),
        ("GPUCOORD_TIME_ZONE", "Europe/Berln", "did you mean Europe/Berlin?"),
    ],
)
def test_a_bad_value_is_named_with_what_would_be_right(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(variable, value)

    problem = _problem()

    assert problem.startswith(variable)
    assert problem.endswith(sentence)


def test_all_bad_values_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_PORT", "x")
    monkeypatch.setenv("GPUCOORD_HTTPS", "x")

    assert len(_problem().splitlines()) == 2


def test_a_bad_option_of_the_command_line_is_named_as_typed() -> None:
    assert _problem(port=-1).startswith("--port is -1: it must be")


def test_a_bad_value_in_the_file_is_named_with_key_and_file(tmp_path: Path) -> None:
    file = tmp_path / "gpucoord.toml"
    file.write_text('port = "many"\n')

    assert _problem().startswith(f'port in {file} is "many": it must be')


def test_an_unknown_key_in_the_file_suggests_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "gpucoord.toml"
    file.write_text("prot = 8001\n")

    assert _problem() == f"prot in {file} is no setting; did you mean port?"


def test_an_unknown_variable_suggests_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_PROT", "8001")

    assert _problem() == "GPUCOORD_PROT is no setting; did you mean GPUCOORD_PORT?"


def test_what_a_job_finds_in_its_environment_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUCOORD_JOB_ID", "7")

    assert load_config().port == 8000


def test_broken_toml_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "gpucoord.toml").write_text("port = 1\nprobe = \n")

    assert "is not valid TOML" in _problem()
    assert "line 2" in _problem()


def test_a_named_file_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUCOORD_CONFIG", str(tmp_path / "other.toml"))

    assert "there is no such file" in _problem()


def test_a_file_of_someone_else_in_the_current_folder_is_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gpucoord.toml").write_text("port = 9001\n")
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 12345)
    if os.stat(tmp_path).st_uid == 0:
        os.chown(tmp_path / "gpucoord.toml", 12346, -1)

    assert load_config().port == 8000


def test_the_data_folder_may_hold_the_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gpucoord.toml").write_text("port = 9004\n")

    assert load_config().port == 9004


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hush@host/name",
        "postgresql://u:hush@host/",
        "postgresql://u:hush@host:port/name",
        "hush",
        "sqlite:///",
    ],
)
def test_a_secret_that_is_wrong_is_not_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("DATABASE_URL", url)

    problem = _problem()

    assert problem.startswith("DATABASE_URL has a value that can't be used: ")
    assert "hush" not in problem


def test_secrets_are_not_in_the_representation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:hush@host/name")
    monkeypatch.setenv("GPUCOORD_ADMIN_PASSWORD", "hush")

    assert "hush" not in repr(load_config())


def test_names_are_listed_with_commas_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_ALLOWED_HOSTS", "a.example.org, b.example.org,")

    assert load_config().allowed_hosts == ["a.example.org", "b.example.org"]


def test_names_are_a_list_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "gpucoord.toml").write_text('allowed_hosts = ["a.example.org"]\n')

    assert load_config().allowed_hosts == ["a.example.org"]


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUCOORD_PORT", "GPUCOORD_ADMIN_PASSWORD", "DATABASE_URL", "GPUCOORD_CONFIG"):
        monkeypatch.setenv(name, "")

    config = load_config()

    assert (config.port, config.admin_password, config.database_url) == (8000, None, None)


@pytest.mark.parametrize("name", ["a\nb", "a\x1bb", "..", "../jobs", "any"])
def test_a_host_name_that_pages_logs_or_options_cannot_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("GPUCOORD_NODE", name)

    assert "it must be" in _problem()


def test_the_data_folder_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUCOORD_DATA", "here")

    assert load_config().data == tmp_path / "here"


def test_every_variable_in_the_code_is_a_known_one() -> None:
    known = {name for field in rules() for name in variables(field)}
    texts = (p.read_text() for app in ("gpucoord_site", "monitor", "scheduler", "reports")
             for p in (ROOT / app).rglob("*.py"))  # fmt: skip
    named = {name for text in texts for name in re.findall(r"\bGPUCOORD_[A-Z][A-Z_]*[A-Z]\b", text)}

    assert named - known - OTHER_VARIABLES == set()


def test_every_setting_is_described() -> None:
    assert [name for name, rule in rules().items() if not rule.about] == []


@pytest.mark.parametrize("command", [["-m", "gpucoord_site", "migrate"], ["manage.py", "migrate"]])
def test_a_person_sees_a_sentence_and_no_traceback(command: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "GPUCOORD_PORT": "many"},
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 2
    assert 'GPUCOORD_PORT is "many"' in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_data_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")

    ran = subprocess.run(
        [sys.executable, "manage.py", "migrate"], cwd=ROOT, capture_output=True, text=True
    )

    assert ran.returncode == 2
    assert f"The data folder {tmp_path / 'data'} can't be used" in ran.stderr


@pytest.mark.parametrize("given", ["nonsense", '{"RTX 9090": -1}', '{"RTX 9090": "fast"}', "[1]"])
def test_ranks_of_gpus_that_make_no_sense_are_named(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("GPUCOORD_GPU_POWER", given)
    with pytest.raises(ConfigError, match=r"GPUCOORD_GPU_POWER is .*: it must name models"):
        load_config()


def test_ranks_of_gpus_come_from_a_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_GPU_POWER", '{"RTX 9090": 900}')
    assert load_config().gpu_power == {"RTX 9090": 900.0}


def test_a_profile_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOORD_PROFILE", "laptop")

    assert _problem().endswith("it must be one of desktop, server, coordinator.")


def test_a_bad_threshold_in_the_file_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "gpucoord.toml"
    file.write_text("[policy.hogz]\nshare_pct = 120\n")

    assert _problem() == f"policy in {file}: [policy.hogz] is no policy; did you mean hogs?"


@pytest.mark.parametrize("given", ["nonsense", "[1]"])
def test_thresholds_in_a_variable_must_be_tables(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("GPUCOORD_POLICY", given)

    assert "GPUCOORD_POLICY is" in _problem()
    assert "it must name policies with their thresholds" in _problem()
