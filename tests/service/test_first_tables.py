"""A new database has the tables that its migrations would make, and their first rows."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from scheduler.facts.scripts import SHIPPED

ROOT = Path(__file__).resolve().parents[2]
PREPARE = """
import django
django.setup()
from gpucoord_site.service import startup_checks
startup_checks.call_command = None
startup_checks.prepare_database()
startup_checks.prepare_database()
"""
Ask = Callable[[str], Iterable[tuple[Any, ...]]]
pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """A database that was prepared without `migrate`."""
    data = tmp_path_factory.mktemp("new")
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    env |= {"GPUCOORD_DATA": str(data), "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings"}
    subprocess.run([sys.executable, "-c", PREPARE], check=True, env=env, cwd=ROOT)
    file = sqlite3.connect(data / "gpucoord.sqlite3")
    return lambda sql: file.execute(sql).fetchall()


def ask_migrated(sql: str) -> list[tuple[Any, ...]]:
    """The database of the tests, which migrations have made."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def definitions(table: str) -> list[str]:
    """Those of a table's columns and constraints, in an order of their own."""
    parts, depth = [""], 0
    for character in table.partition("(")[2].rpartition(")")[0]:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return sorted(re.sub(r"\s+", " ", part).strip() for part in parts)


def schema(ask: Ask) -> dict[str, Any]:
    rows = ask("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {
        name: definitions(sql) if kind == "table" else sql
        for kind, name, sql in rows
        if not name.startswith("sqlite_")
    }


def test_its_tables_and_indexes_are_those_of_the_migrations(new: Ask) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("The tests run on PostgreSQL.")
    assert schema(new) == schema(ask_migrated)


@pytest.mark.parametrize(
    "asked",
    [
        "SELECT DISTINCT app, name FROM django_migrations ORDER BY 1, 2",
        "SELECT codename FROM auth_permission ORDER BY codename",
        "SELECT app_label, model FROM django_content_type ORDER BY 1, 2",
    ],
)
def test_it_has_the_first_rows_that_migrations_leave(new: Ask, asked: str) -> None:
    assert list(new(asked)) == ask_migrated(asked)


def test_it_has_the_shipped_scripts(new: Ask) -> None:
    assert new("SELECT COUNT(*) FROM scheduler_scriptdefinition") == [(len(SHIPPED),)]
