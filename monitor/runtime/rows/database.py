"""Statements of which Django compiles the SQL once, inserts without instances, the SQLite file.

Statements compiled once are for paths that run for each job or each tick. They do what the same
call of a QuerySet does.

SQLite keeps writing to a deleted file and creates an empty one for each new connection, so the
result of a query does not show that the file was deleted or replaced.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast

from django.db import OperationalError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models import AutoField, Field, Model, QuerySet
from django.db.models.query import ModelIterable

P = ParamSpec("P")
M = TypeVar("M", bound=Model)
R = TypeVar("R", covariant=True)
# The keys that queries are compiled with; real keys take their place.
MARK = -987_654_321
TEXT_MARK = "mark 987654321"
TIME_MARK = datetime(1987, 6, 5, 4, 3, 21, 987_654, UTC)
K = TypeVar("K")


@dataclass(frozen=True)
class _Compiled(Generic[R]):
    """A query with its SQL; `names` are the fields of its model, None if it returns no such rows.

    It holds nothing of a connection: each request of the web process has one of its own.
    """

    query: QuerySet[Any, R]
    compiler: Any
    sql: str
    params: tuple[object, ...]
    names: list[str] | None

    def object_of(self, row: Sequence[object]) -> R:
        """The fields come first, and after them the annotations."""
        names = cast("list[str]", self.names)
        made = self.query.model.from_db(self.query.db, names, row[: len(names)])
        for name, place in (self.compiler.annotation_col_map or {}).items():
            setattr(made, name, row[place])
        return cast(R, made)


class PreparedQuery(Generic[K, R]):
    """Rows of a query, which may join and may have one number, text or time as its argument.

    `query` gets `mark` in place of it, and uses it as the value of filters only.
    """

    def __init__(self, query: Callable[[K], QuerySet[Any, R]], mark: K) -> None:
        self._query = query
        self._mark = mark
        self._made: _Compiled[R] | None = None

    def rows(self, key: K | None = None) -> list[R]:
        compiled, compiler, given = self._for_caller(key)
        if compiled.names is not None:
            stored = self._fetch(compiler, compiled.sql, given)
            return [compiled.object_of(row) for row in self._convert(compiler, stored)]
        query = compiled.query.all()
        compiler.as_sql = lambda *_, **__: (compiled.sql, given)
        query.query.get_compiler = lambda *_, **__: compiler  # type: ignore[method-assign]
        return list(query)

    def stored(self, key: K | None = None) -> list[tuple[Any, ...]]:
        """The rows as the database driver gives them."""
        compiled, compiler, given = self._for_caller(key)
        return list(map(tuple, self._fetch(compiler, compiled.sql, given)))

    def converted(self, stored: Sequence[tuple[Any, ...]]) -> list[R]:
        """Convert these rows of `stored` as `rows` does. The query is one of `values_list`."""
        _, compiler, _ = self._for_caller(None)
        return cast("list[R]", list(self._convert(compiler, stored)))

    @staticmethod
    def _fetch(compiler: Any, sql: str, params: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with compiler.connection.cursor() as cursor:
            cursor.execute(sql, params)
            return cast("list[tuple[Any, ...]]", cursor.fetchall())

    @staticmethod
    def _convert(compiler: Any, stored: Sequence[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        converters = compiler.get_converters(())
        if not stored or not converters:
            return stored
        return map(tuple, compiler.apply_converters(stored, converters))

    def _for_caller(self, key: K | None) -> tuple[_Compiled[R], Any, tuple[object, ...]]:
        """Each caller has a copy of the compiler: threads have connections of their own."""
        compiled = self._made = self._made or self._compile()
        compiler = copy(compiled.compiler)
        compiler.connection = connections[compiled.query.db]
        if key is None:
            return compiled, compiler, compiled.params
        mark, value = _adapted(self._mark, compiler), _adapted(key, compiler)
        given = tuple(value if param == mark else param for param in compiled.params)
        return compiled, compiler, given

    def _compile(self) -> _Compiled[R]:
        rows = self._query(self._mark)
        compiler: Any = rows.query.get_compiler(rows.db)
        sql, params = compiler.as_sql()
        converters = compiler.get_converters([column[0] for column in compiler.select or ()])
        compiler.get_converters = lambda _: converters
        return _Compiled(rows, compiler, sql, tuple(params), _names(rows, compiler))


def _names(rows: QuerySet[Any, Any], compiler: Any) -> list[str] | None:
    """The columns of model instances without joined or prefetched ones; None for other rows."""
    info = compiler.klass_info
    of_model = rows._iterable_class is ModelIterable and info
    if not of_model or info.get("related_klass_infos") or rows._prefetch_related_lookups:  # type: ignore[attr-defined]
        return None
    return [compiler.select[place][0].target.attname for place in info["select_fields"]]


def compiled_once(query: Callable[P, QuerySet[Any, R]]) -> Callable[P, list[R]]:
    """The rows of `query`, which may join. Each set of arguments is cached, so keep them few."""
    compiled: dict[object, PreparedQuery[int, R]] = {}

    @wraps(query)
    def run(*args: P.args, **kwargs: P.kwargs) -> list[R]:
        key = (args, tuple(kwargs.items()))
        if key not in compiled:
            compiled[key] = PreparedQuery(lambda _: query(*args, **kwargs), MARK)
        return compiled[key].rows()

    return run


def compiled_for_times(
    query: Callable[[str, datetime], QuerySet[Any, R]],
) -> Callable[[str, datetime], list[R]]:
    """The rows of `query(name, at)`, compiled once for each name."""
    compiled: dict[str, PreparedQuery[datetime, R]] = {}

    @wraps(query)
    def run(name: str, at: datetime) -> list[R]:
        if name not in compiled:
            compiled[name] = PreparedQuery(partial(query, name), TIME_MARK)
        return compiled[name].rows(at)

    return run


def _adapted(value: object, compiler: Any) -> object:
    """As a parameter of the database of `compiler`."""
    if isinstance(value, datetime):
        return compiler.connection.ops.adapt_datetimefield_value(value)
    return value


def update_rows(model: type[Model], where: Mapping[str, object], **values: object) -> int:
    """As `model.objects.filter(**where).update(**values)`; returns the number of rows.

    `where` has plain fields: None asks for NULL, a tuple for one of its values.
    """
    shape = tuple((name, _length(value)) for name, value in where.items())
    sql, fields, filters = _update_sql(model, connection.vendor, shape, tuple(values))
    params = [
        field.get_db_prep_save(value, connection)
        for field, value in zip(fields, values.values(), strict=True)
    ]
    for field, value in zip(filters, where.values(), strict=True):
        params += [field.get_db_prep_value(each, connection) for each in _each(value)]
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def _length(value: object) -> int | None:
    """Of a tuple; None for one value, 0 for NULL."""
    return len(value) if isinstance(value, tuple) else 0 if value is None else None


def _each(value: object) -> Iterable[object]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


@cache
def _update_sql(
    model: type[Model],
    _vendor: str,
    where: tuple[tuple[str, int | None], ...],
    names: tuple[str, ...],
) -> tuple[str, list[Field[Any, Any]], list[Field[Any, Any]]]:
    fields = [_field(model, name) for name in names]
    filters = [_field(model, name) for name, _ in where]
    changes = ", ".join(f"{_quoted(field.column)} = %s" for field in fields)
    conditions = " AND ".join(
        _condition(_quoted(field.column), length)
        for field, (_, length) in zip(filters, where, strict=True)
    )
    table = _quoted(model._meta.db_table)
    return f"UPDATE {table} SET {changes} WHERE {conditions}", fields, filters  # noqa: S608


def _condition(column: str, length: int | None) -> str:
    if length is None:
        return f"{column} = %s"
    return f"{column} IN ({', '.join(['%s'] * length)})" if length else f"{column} IS NULL"


def insert_row(row: M) -> M:
    """As `row.save(force_insert=True)` of a new row without signals; sets its number."""
    sql, fields = _insert_returning_sql(type(row), connection.vendor)
    params = [field.get_db_prep_save(field.pre_save(row, add=True), connection) for field in fields]
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        row.pk = cursor.fetchone()[0]
    row._state.adding, row._state.db = False, connection.alias
    return row


def upsert_rows(rows: Sequence[Model], unique: tuple[str, ...], updated: tuple[str, ...]) -> None:
    """As `bulk_create(rows, update_conflicts=True, …)`, but it does not set the rows' numbers.

    `rows` are of one model, `unique` the fields of its key. Fields that are not `updated` are
    stored in new rows only.
    """
    if not rows:
        return
    sql, fields = _upsert_sql(type(rows[0]), connection.vendor, unique, updated)
    params = [
        [field.get_db_prep_save(field.pre_save(row, add=True), connection) for field in fields]
        for row in rows
    ]
    with connection.cursor() as cursor:
        cursor.executemany(sql, params)


@cache
def _upsert_sql(
    model: type[Model], _vendor: str, unique: tuple[str, ...], updated: tuple[str, ...]
) -> tuple[str, list[Field[Any, Any]]]:
    sql, fields = _insert_sql(model)
    key = ", ".join(_quoted(_field(model, name).column) for name in unique)
    changed = [_quoted(_field(model, name).column) for name in updated]
    changes = ", ".join(f"{column} = EXCLUDED.{column}" for column in changed)
    return f"{sql} ON CONFLICT ({key}) DO UPDATE SET {changes}", fields


@cache
def _insert_returning_sql(model: type[Model], _vendor: str) -> tuple[str, list[Field[Any, Any]]]:
    sql, fields = _insert_sql(model)
    return f"{sql} RETURNING {_quoted(_field(model, 'pk').column)}", fields


def _insert_sql(model: type[Model]) -> tuple[str, list[Field[Any, Any]]]:
    """The statement, and the fields in the order of its values: all but an automatic number."""
    fields = [field for field in model._meta.concrete_fields if not isinstance(field, AutoField)]
    columns = ", ".join(_quoted(field.column) for field in fields)
    marks = ", ".join(["%s"] * len(fields))
    table = _quoted(model._meta.db_table)
    return f"INSERT INTO {table} ({columns}) VALUES ({marks})", fields  # noqa: S608


def _field(model: type[Model], name: str) -> Field[Any, Any]:
    return cast("Field[Any, Any]", model._meta.pk if name == "pk" else model._meta.get_field(name))


def _quoted(name: str | None) -> str:
    return connection.ops.quote_name(name or "")


POSTGRES_DISK_FULL = "53100"


def keep_commits_synced(*, on: bool) -> None:
    """Whether this connection's commits survive a power cut (with PostgreSQL they always do)."""
    if connection.vendor == "sqlite" and not connection.in_atomic_block:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA synchronous={'FULL' if on else 'NORMAL'}")


class FilledTables:
    """Which of these tables have rows, in one cheap query."""

    def __init__(self, *models: type[Model]) -> None:
        self._models = models

    def read(self) -> tuple[bool, ...]:
        tables = (_quoted(model._meta.db_table) for model in self._models)
        columns = ", ".join(f"EXISTS (SELECT 1 FROM {table})" for table in tables)  # noqa: S608
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {columns}")
            return tuple(map(bool, cursor.fetchone()))


def insert(model: type[Model], rows: Iterable[Mapping[str, object]]) -> int:
    """Insert many rows of numbers and texts, by column name; returns their number.

    Rows that exist already stay. bulk_create() takes several times as long, because it makes
    model instances and converts values. Here dates and JSON are not converted.
    """
    sql, fields = _insert_new_sql(model, connection.vendor)
    defaults = {field.attname: field.get_default() for field in fields}
    values = [tuple({**defaults, **row}.values()) for row in rows]
    with connection.cursor() as cursor:
        cursor.executemany(sql, values)
    return len(values)


@cache
def _insert_new_sql(model: type[Model], _vendor: str) -> tuple[str, list[Field[Any, Any]]]:
    sql, fields = _insert_sql(model)
    return f"{sql} ON CONFLICT DO NOTHING", fields


SENTENCE = (
    "The database file {name} was deleted or replaced while gpucoord runs. "
    "Stop gpucoord, put the file back from a backup, and start gpucoord again."
)


class DatabaseFileGone(OperationalError):
    """The message is the sentence of `file_problem`."""


class OpenedFile:
    """The identity of the file when it was first opened; forked children inherit it."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._identity: tuple[int, int] | None = None

    def remember(self, path: Path) -> None:
        """Only the first call with an existing file has an effect."""
        if self.path is None and (identity := _identity(path)) is not None:
            self.path, self._identity = path, identity

    def problem(self) -> str | None:
        """A sentence if the file at the path is missing or another one; None: no known problem."""
        if self.path is None or _identity(self.path) == self._identity:
            return None
        return SENTENCE.format(name=self.path.name)


opened = OpenedFile()


def is_full(error: BaseException | None) -> bool:
    """Whether the disk of the database was full."""
    while error is not None:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return True
        if getattr(error, "sqlstate", None) == POSTGRES_DISK_FULL:
            return True
        error = error.__cause__
    return False


def file_problem() -> str | None:
    return opened.problem()


def check_file() -> None:
    """Raises DatabaseFileGone."""
    if text := file_problem():
        raise DatabaseFileGone(text)


def listen() -> None:
    """Remember the file of the first connection."""
    connection_created.connect(_connected, dispatch_uid="database_file")


def _connected(connection: BaseDatabaseWrapper, **_: Any) -> None:
    if connection.vendor == "sqlite" and opened.path is None:
        path = Path(str(connection.settings_dict["NAME"]))
        if path.is_absolute():
            opened.remember(path)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
