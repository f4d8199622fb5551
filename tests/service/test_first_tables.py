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

import psycopg
import pytest

from scheduler.facts.scripts import SHIPPED
from tests.service.postgres_cluster import cluster

ROOT = Path(__file__).resolve().parents[2]
# Without Django's own `migrate`, and with it alone.
AT_ONCE = """
import django
django.setup()
from django.core.management.commands import migrate
from gpucoord_site.service import startup_checks
migrate.Command.handle = None
startup_checks.prepare_database()
startup_checks.prepare_database()
"""
IN_STEPS = """
import django
django.setup()
from django.core.management import call_command
from django.core.management.commands import migrate
call_command(migrate.Command(), verbosity=0)
"""
Ask = Callable[[str], Iterable[tuple[Any, ...]]]


def made(code: str, data: Path, **more: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    env |= {"GPUCOORD_DATA": str(data), "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env | more, cwd=ROOT)


def asked(code: str, data: Path) -> Ask:
    made(code, data)
    file = sqlite3.connect(data / "gpucoord.sqlite3")
    return lambda sql: file.execute(sql).fetchall()


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    return asked(AT_ONCE, tmp_path_factory.mktemp("new"))


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    return asked(IN_STEPS, tmp_path_factory.mktemp("migrated"))


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


def test_its_tables_and_indexes_are_those_of_the_migrations(new: Ask, migrated: Ask) -> None:
    assert schema(new) == schema(migrated)


@pytest.mark.parametrize(
    "rows",
    [
        "SELECT DISTINCT app, name FROM django_migrations ORDER BY 1, 2",
        "SELECT codename FROM auth_permission ORDER BY codename",
        "SELECT app_label, model FROM django_content_type ORDER BY 1, 2",
    ],
)
def test_it_has_the_first_rows_that_migrations_leave(new: Ask, migrated: Ask, rows: str) -> None:
    assert new(rows) == migrated(rows)


def test_it_has_the_shipped_scripts(new: Ask) -> None:
    assert new("SELECT COUNT(*) FROM scheduler_scriptdefinition") == [(len(SHIPPED),)]


CATALOGUES = (
    "SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity,"
    " character_maximum_length FROM information_schema.columns WHERE table_schema = 'public'"
    " ORDER BY 1, 2",
    "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
    " ORDER BY 1, 2",
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2",
    "SELECT app, name FROM django_migrations WHERE name = '0001_initial' ORDER BY 1",
    "SELECT name FROM scheduler_scriptdefinition ORDER BY 1",
)


@pytest.mark.postgres
def test_it_is_the_same_on_postgresql(tmp_path: Path) -> None:
    found = []
    with cluster() as url:
        for name, code in (("new", AT_ONCE), ("migrated", IN_STEPS)):
            with psycopg.connect(url, autocommit=True) as server:
                server.execute(f"CREATE DATABASE {name}")
            there = f"{url.rpartition('/')[0]}/{name}"
            made(code, tmp_path, DATABASE_URL=there)
            with psycopg.connect(there) as database:
                found.append([database.execute(sql).fetchall() for sql in CATALOGUES])
    assert all(found[0])
    assert found[0] == found[1]
