"""The layers of ARCHITECTURE.md, read from the imports and calls of every module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
APPS = ("monitor", "scheduler", "reports", "gpucoord_site")
FACTS = {
    "monitor.readings",
    "monitor.stepping",
    "monitor.claims",
    "monitor.gpu_closures",
    "monitor.gpu_states",
    "monitor.health",
    "monitor.use_facts",
    "monitor.limits",
    "monitor.owner_facts",
    "monitor.formats",
    "monitor.demand",
    "monitor.cpu_facts",
    "monitor.pages.badges",
    "monitor.event_kinds",
    "scheduler.attempts",
    "scheduler.jobs",
    "scheduler.plans",
    "scheduler.people",
    "scheduler.blockers",
    "scheduler.units",
    "scheduler.wishes",
}
PURE_STDLIB = {
    "__future__", "bisect", "collections", "contextlib", "dataclasses", "datetime", "difflib",
    "enum", "fnmatch", "fractions", "functools", "heapq", "html", "itertools", "json", "math",
    "operator", "re", "shlex", "statistics", "string", "types", "typing", "zlib", "zoneinfo",
}  # fmt: skip
BANNED_NAMES = {"utils", "util", "helpers", "common", "core", "manager", "managers", "misc"}
CLOCKS = {
    "timezone.now", "datetime.now", "datetime.utcnow", "datetime.today", "date.today",
    "time.time", "time.time_ns", "timezone.localtime", "timezone.localdate",
}  # fmt: skip
STARTERS = {"subprocess", "multiprocessing", "pty"}
DJANGO = {"django", "channels", "django_q", "structlog"}
DOORS = {"tasks", "views", "consumers", "api", "admin", "hub", "passes"}
PAGE_WIRING = {"apps", "urls"}
SENDERS = {
    "os.kill", "os.killpg", "os.fork", "os.forkpty", "os.posix_spawn", "os.system",
    "signal.pidfd_send_signal", "signal.pthread_kill", "signal.raise_signal",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Module:
    path: Path
    name: str
    tree: ast.Module
    lines: int

    @property
    def app(self) -> str:
        return self.name.split(".")[0]

    @property
    def parts(self) -> list[str]:
        return self.name.split(".")

    @property
    def pure(self) -> bool:
        return self.name in FACTS or "policy" in self.parts or self.name == "monitor.pages.charts"

    @property
    def edge(self) -> bool:
        return bool({"probes", "runner", "senders"} & set(self.parts))

    @property
    def rows(self) -> bool:
        return "models" in self.parts or self.parts[-1] == "store"

    @property
    def door(self) -> bool:
        last = self.parts[-1]
        return (
            bool({"commands", "admin"} & set(self.parts))
            or last in DOORS
            or last.endswith(("_views", "_api"))
        )

    @property
    def page(self) -> bool:
        """It makes pages, or puts them where Django finds them."""
        return bool({"pages", "templatetags"} & set(self.parts)) or self.parts[-1] in PAGE_WIRING

    @property
    def runs_processes(self) -> bool:
        return self.app == "gpucoord_site" or self.name.startswith("scheduler.runner")

    def imports(self) -> set[str]:
        """Full dotted names; `from a import b` counts as a.b when a.b is a module of ours."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found.add(full if full in NAMES else node.module)
        return found

    def calls(self) -> set[str]:
        """The last two words of each called name: `django.utils.timezone.now` is timezone.now."""
        calls = (node.func for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return {".".join(ast.unparse(f).split(".")[-2:]) for f in calls}


@cache
def _imports(module: Module) -> set[str]:
    return module.imports()


@cache
def _calls(module: Module) -> set[str]:
    return module.calls()


def _read(path: Path) -> Module:
    text = path.read_text()
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return Module(path, name, ast.parse(text), text.count("\n"))


def _is_ours(path: Path) -> bool:
    return not {"migrations", "__pycache__"} & set(path.parts)


MODULES = [_read(p) for app in APPS for p in sorted((ROOT / app).rglob("*.py")) if _is_ours(p)]
NAMES = {m.name for m in MODULES}


def _of_us(module: Module) -> set[str]:
    return {name for name in _imports(module) if name.split(".")[0] in APPS}


def _outside(module: Module) -> set[str]:
    return {name.split(".")[0] for name in _imports(module)} - set(APPS)


def _offenders(
    bad: Callable[[Module], Iterable[str]], where: Callable[[Module], bool] = lambda _: True
) -> dict[str, list[str]]:
    """{module: what it does against the rule}, of the modules that the rule is about."""
    return {m.name: sorted(found) for m in MODULES if where(m) and (found := list(bad(m)))}


def test_facts_and_policy_import_only_pure_things() -> None:
    pure = {m.name for m in MODULES if m.pure}

    assert not _offenders(
        lambda m: (_outside(m) - PURE_STDLIB) | (_of_us(m) - pure), where=lambda m: m.pure
    )


def test_facts_import_no_policy() -> None:
    assert not _offenders(lambda m: _of_us(m) - FACTS, where=lambda m: m.name in FACTS)


def test_edges_never_import_django_or_rows() -> None:
    rows = {m.name for m in MODULES if m.rows}

    assert not _offenders(
        lambda m: (_outside(m) & DJANGO) | (_of_us(m) & rows), where=lambda m: m.edge
    )


def test_rows_import_no_edge_and_no_door() -> None:
    above = {m.name for m in MODULES if m.door or m.edge}

    assert not _offenders(lambda m: _of_us(m) & above, where=lambda m: m.rows)


def test_apps_import_downwards_only() -> None:
    above = {app: set(APPS[i + 1 :]) for i, app in enumerate(APPS)}

    assert not _offenders(lambda m: {n for n in _of_us(m) if n.split(".")[0] in above[m.app]})


def test_pynvml_and_psutil_have_one_door_each() -> None:
    doors = {"monitor.probes.nvml": {"pynvml"}, "monitor.probes.host": {"psutil"}}

    assert not _offenders(lambda m: _outside(m) & {"pynvml", "psutil"} - doors.get(m.name, set()))


def test_apprise_has_one_door() -> None:
    assert not _offenders(
        lambda m: _outside(m) & {"apprise"}, where=lambda m: m.name != "monitor.senders.notify"
    )


def test_only_the_runner_and_the_supervisor_start_and_signal_processes() -> None:
    assert not _offenders(
        lambda m: (_outside(m) & STARTERS) | (_calls(m) & SENDERS),
        where=lambda m: not m.runs_processes,
    )


def test_only_doors_read_a_clock() -> None:
    assert not _offenders(
        lambda m: _calls(m) & CLOCKS, where=lambda m: not (m.door or m.runs_processes)
    )


def test_only_doors_and_templates_know_pages() -> None:
    assert not _offenders(
        lambda m: {name for name in _of_us(m) if "pages" in name.split(".")},
        where=lambda m: not (m.door or m.page or m.app == "gpucoord_site"),
    )


def test_django_q_stays_in_tasks_and_wiring() -> None:
    assert not _offenders(
        lambda m: _outside(m) & {"django_q"},
        where=lambda m: m.parts[-1] != "tasks" and m.app != "gpucoord_site",
    )


def test_only_wiring_and_edges_read_the_environment() -> None:
    def reads(m: Module) -> set[str]:
        nodes = (n for n in ast.walk(m.tree) if isinstance(n, ast.Attribute))
        return {ast.unparse(n) for n in nodes if n.attr == "environ"}

    assert not _offenders(reads, where=lambda m: m.app != "gpucoord_site" and not m.edge)


def test_modules_and_functions_stay_short() -> None:
    def long(m: Module) -> list[str]:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        functions = (n for n in ast.walk(m.tree) if isinstance(n, kinds))
        over = [f.name for f in functions if (f.end_lineno or f.lineno) - f.lineno + 1 > 60]
        return [*over, f"{m.lines} lines"] if m.lines > 300 else over

    assert not _offenders(long)


def test_modules_are_named_after_what_they_hold() -> None:
    assert not _offenders(lambda m: BANNED_NAMES & set(m.parts))


def test_modules_say_what_they_are_for() -> None:
    def declares(m: Module) -> bool:
        return "models" in m.parts or m.parts[-1] in {"apps", "__init__"} or m.lines <= 12

    assert not _offenders(
        lambda m: () if ast.get_docstring(m.tree) else ["no docstring"],
        where=lambda m: not declares(m),
    )


def test_the_rules_see_what_is_there() -> None:
    by_name = {m.name: m for m in MODULES}

    assert by_name["monitor.readings"].pure
    assert by_name["scheduler.models.jobs"].rows
    assert "scheduler.jobs" in by_name["scheduler.models.jobs"].imports()
    assert set(sys.stdlib_module_names) >= PURE_STDLIB
