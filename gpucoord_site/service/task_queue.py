"""The queue of tasks in the database, as django-q2 asks it several times a second."""

from __future__ import annotations

from time import sleep

from django.db import connections
from django.utils import timezone
from django_q.brokers.orm import ORM
from django_q.conf import Conf
from django_q.models import OrmQ


class TaskQueue(ORM):  # type: ignore[misc]
    """django-q2's own queue, with a cheap question whether a task waits.

    django-q2 compiles its query each time, which takes far longer than its answer.
    """

    def dequeue(self) -> list[tuple[int, str]] | None:
        """The next tasks; None after a pause if there are none."""
        # This closes connections that have failed.
        self.get_connection()
        if self._is_empty():
            sleep(Conf.POLL)
            return None
        tasks: list[tuple[int, str]] | None = super().dequeue()
        return tasks

    def _is_empty(self) -> bool:
        connection = connections[Conf.ORM]
        table = connection.ops.quote_name(OrmQ._meta.db_table)
        now = connection.ops.adapt_datetimefield_value(timezone.now())
        sql = f"SELECT 1 FROM {table} WHERE key = %s AND lock < %s LIMIT 1"  # noqa: S608
        with connection.cursor() as cursor:
            cursor.execute(sql, [self.list_key, now])
            return cursor.fetchone() is None
