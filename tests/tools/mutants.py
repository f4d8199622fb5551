"""How many small faults in the code its tests notice: `python -m tests.tools.mutants`.

    python -m tests.tools.mutants scheduler.queue.planner --tests tests/scheduler/queue --count 40

Each fault is made in memory when pytest imports the module, never in a file. The places are drawn
with a seed, so a later run makes the same ones in the same code. A fault that no test notices is
printed with its line: some change nothing that matters, the others lack a test.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import os
import pkgutil
import random
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import CodeType

PLACE = "MUTANT"
LONGEST_S = 900
_OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutator(ast.NodeTransformer):
    """Counts the places where a fault can be made, and makes the one with number `chosen`."""

    def __init__(self, chosen: int = -1) -> None:
        self.places: list[tuple[int, str]] = []
        self._chosen = chosen

    def _is_next(self, node: ast.AST, what: str) -> bool:
        self.places.append((getattr(node, "lineno", 0), what))
        return len(self.places) - 1 == self._chosen

    def _swapped(self, node: ast.AST, operator: ast.AST) -> ast.AST:
        other = _OTHER.get(type(operator))
        if other is None or not self._is_next(
            node, f"{type(operator).__name__} → {other.__name__}"
        ):
            return operator
        return other()

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        node.ops = [self._swapped(node, operator) for operator in node.ops]  # type: ignore[misc]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        is_type = isinstance(node.op, ast.BitOr)
        node.op = node.op if is_type else self._swapped(node, node.op)  # type: ignore[assignment]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        node.op = self._swapped(node, node.op)  # type: ignore[assignment]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        is_not = isinstance(node.op, ast.Not) and self._is_next(node, "not left out")
        return node.operand if is_not else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _NAMES and self._is_next(node, f"{name} → {_NAMES[name]}"):
            node.func = ast.Name(_NAMES[name], ast.Load())
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        if isinstance(value, bool) and self._is_next(node, f"return {not value}"):
            node.value = ast.Constant(not value)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        is_call = isinstance(node.value, ast.Call) and self._is_next(node, "call left out")
        return ast.Pass() if is_call else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        return ast.Pass() if self._is_next(node, "assignment left out") else node

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return ast.Break() if self._is_next(node, "continue → break") else node


def places_of(source: str) -> list[tuple[int, str]]:
    """(line, fault) of each place, in the order of their numbers."""
    mutator = Mutator()
    mutator.visit(ast.parse(source))
    return mutator.places


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module with one fault."""

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(Path(self.path).read_text())
        tree = Mutator(int(os.environ[PLACE].partition(":")[2])).visit(tree)
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname != os.environ[PLACE].partition(":")[0]:
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(fullname, spec.origin)
        return spec


if PLACE in os.environ:
    sys.meta_path.insert(0, Finder)


def modules(names: list[str]) -> Iterator[tuple[str, Path]]:
    """Modules by name; of a package, all of them."""
    for name in names:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"There is no module {name}.")
        if spec.submodule_search_locations is None:
            yield name, Path(spec.origin)
            continue
        for info in pkgutil.walk_packages(spec.submodule_search_locations, f"{name}."):
            own = info.module_finder.find_spec(info.name, None)
            if own is not None and own.origin is not None and not info.ispkg:
                yield info.name, Path(own.origin)


def is_noticed(name: str, number: int, tests: list[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-p", "tests.tools.mutants", "-n0", "-x", "-q"]
    command += ["-p", "no:cacheprovider", "--reuse-db", *tests]
    environment = os.environ | {PLACE: f"{name}:{number}"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+", help="modules or packages")
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    all_places = [
        (name, path, number, *place)
        for name, path in modules(asked.modules)
        for number, place in enumerate(places_of(path.read_text()))
    ]
    drawn = random.Random(asked.seed).sample(all_places, min(asked.count, len(all_places)))
    if is_noticed(drawn[0][0], -1, asked.tests):
        raise SystemExit("These tests fail without a fault, too.")
    noticed = 0
    for name, path, number, line, fault in drawn:
        if is_noticed(name, number, asked.tests):
            noticed += 1
        else:
            sys.stdout.write(f"not noticed: {path}:{line}: {fault}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{noticed} of {len(drawn)} faults noticed, of {len(all_places)} places\n")


if __name__ == "__main__":
    main()
