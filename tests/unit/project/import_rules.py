"""The import rules that a linter of imports cannot see, as checks on syntax trees.

import-linter (pyproject.toml) knows which module imports which. It does not know what
a module *does* with ``random`` or ``datetime``, and it takes no interest in ``open``.
Each check returns one line per violation: ``file:line: what``.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("llmgw", "controlplane", "router", "agent", "migrations")
PARTS = ("controlplane", "router", "agent")

_FRAMEWORKS = "alembic flask flask_smorest gevent greenlet requests sqlalchemy urllib3"
_WORLD = (
    "_thread _socket asyncio concurrent http.client http.server importlib io logging multiprocessing os secrets select "
    "selectors shutil signal socket ssl subprocess sys tempfile threading time urllib.request uuid"
)
IMPURE_IMPORTS = frozenset(_FRAMEWORKS.split()) | frozenset(_WORLD.split())
"""Packages and modules a pure module must not import, wherever in the module."""

IMPURE_CALLS = frozenset({"__import__", "breakpoint", "eval", "exec", "input", "open", "print"})
CLOCK_READS = frozenset({"now", "today", "utcnow"})
WIRE_MAY_IMPORT = frozenset(sys.stdlib_module_names) | {"msgspec"}
MIGRATIONS_MAY_IMPORT = frozenset(sys.stdlib_module_names) | {"alembic", "sqlalchemy"}
SLOW_OR_EARLY = frozenset({"flask", "gevent", "requests", "sqlalchemy", "ssl", "urllib3"})
"""What the command must not load before it becomes another program (``llmgw server``
execs the part's main, which patches first), nor to print its help."""


def pure_modules(root: Path = ROOT) -> list[str]:
    """The one list of pure modules: import-linter's contract ``pure``."""
    config = tomllib.loads((root / "pyproject.toml").read_text())
    for contract in config["tool"]["importlinter"]["contracts"]:
        if contract["id"] == "pure":
            return list(contract["source_modules"])
    raise LookupError("pyproject.toml has no import-linter contract with id 'pure'")


def files_of(module: str, root: Path = ROOT) -> list[Path]:
    """Source files of a module or of all modules of a package. Empty if there is none."""
    place = root.joinpath(*module.split("."))
    if place.is_dir():
        return sorted(file for file in place.rglob("*.py") if "__pycache__" not in file.parts)
    return [place.with_suffix(".py")] if place.with_suffix(".py").is_file() else []


def module_of(file: Path, root: Path = ROOT) -> str:
    """Dotted name of a source file."""
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, at any depth, also by string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                above = above[: len(above) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def _parse(file: Path, root: Path) -> tuple[ast.Module, str, str]:
    tree = ast.parse(file.read_text(), str(file))
    module = module_of(file, root)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return tree, module, package


def _aliases(tree: ast.AST, module: str) -> tuple[set[str], dict[str, str]]:
    """Names under which ``module`` and its members are known in a file."""
    whole: set[str] = set()
    members: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            whole |= {alias.asname or alias.name for alias in node.names if alias.name == module}
        elif isinstance(node, ast.ImportFrom) and node.module == module and not node.level:
            members |= {alias.asname or alias.name: alias.name for alias in node.names}
    return whole, members


def impurities(file: Path, root: Path = ROOT) -> list[str]:
    """What a pure module does that only drivers may do."""
    tree, _, package = _parse(file, root)
    where = file.relative_to(root)
    found = []
    for line, name in _imports(tree, package):
        if any(f"{name}.".startswith(f"{impure}.") for impure in IMPURE_IMPORTS):
            found.append(f"{where}:{line}: imports {name}")
    random_names, random_members = _aliases(tree, "random")
    for member in random_members.values():
        if member != "Random":
            found.append(f"{where}:1: imports random.{member}")
    datetime_modules, datetime_members = _aliases(tree, "datetime")
    clocks = {name for name, member in datetime_members.items() if member in ("datetime", "date")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            if isinstance(owner, ast.Name) and owner.id in random_names and node.attr != "Random":
                found.append(f"{where}:{node.lineno}: uses random.{node.attr}, not a generator that was handed in")
            inner = isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name)
            is_clock = (isinstance(owner, ast.Name) and owner.id in clocks) or (
                inner and owner.value.id in datetime_modules and owner.attr in ("datetime", "date")
            )
            if is_clock and node.attr in CLOCK_READS:
                found.append(f"{where}:{node.lineno}: reads the clock by {node.attr}()")
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in IMPURE_CALLS:
                found.append(f"{where}:{node.lineno}: calls {called.id}()")
            seedless = not node.args and not node.keywords
            makes = (isinstance(called, ast.Name) and random_members.get(called.id) == "Random") or (
                isinstance(called, ast.Attribute)
                and called.attr == "Random"
                and isinstance(called.value, ast.Name)
                and called.value.id in random_names
            )
            if makes and seedless:
                found.append(f"{where}:{node.lineno}: makes a generator without a seed")
    return found


def foreign_imports(root: Path = ROOT) -> list[str]:
    """Imports that cross parts, also by string; only ``llmgw.sim`` and tests may."""
    found = []
    for package in PACKAGES:
        for file in files_of(package, root):
            tree, module, here = _parse(file, root)
            if module == "llmgw.sim" or module.startswith("llmgw.sim."):
                continue
            for line, name in _imports(tree, here):
                top = name.split(".")[0]
                part_of_another = top in PARTS and top != package
                backstage = top in ("tests", "bench") or (
                    package in PARTS and name.startswith(("llmgw.cli", "llmgw.sim", "llmgw.demo"))
                )
                if part_of_another or backstage:
                    found.append(f"{file.relative_to(root)}:{line}: {module} imports {name}")
    return found


def imports_beyond(package: str, allowed: frozenset[str], root: Path = ROOT) -> list[str]:
    """Imports of a package that are neither its own nor allowed."""
    found = []
    for file in files_of(package, root):
        tree, _, here = _parse(file, root)
        for line, name in _imports(tree, here):
            if name.split(".")[0] not in allowed and not f"{name}.".startswith(f"{package}."):
                found.append(f"{file.relative_to(root)}:{line}: imports {name}")
    return found


def _top_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported (not under TYPE_CHECKING)."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If):
            guard = ast.unparse(statement.test)
            if not guard.endswith("TYPE_CHECKING"):
                yield from _top_level(statement.body)
            yield from _top_level(statement.orelse)
        elif isinstance(statement, ast.Try | ast.With | ast.ClassDef):
            yield from _top_level(statement.body)


def early_imports(package: str, root: Path = ROOT) -> list[str]:
    """Imports at module level of what must not be loaded by the command."""
    found = []
    for file in files_of(package, root):
        tree, _, here = _parse(file, root)
        for statement in _top_level(tree.body):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for line, name in _imports(statement, here):
                    if name.split(".")[0] in SLOW_OR_EARLY:
                        found.append(f"{file.relative_to(root)}:{line}: imports {name} at module level")
    return found


def patches_first(file: Path) -> bool:
    """Whether the first two statements are gevent's monkey patch."""
    body = [node for node in ast.parse(file.read_text()).body if not isinstance(node, ast.Expr) or _is_call(node)]
    if len(body) < 2:
        return False
    first, second = body[0], body[1]
    return (
        isinstance(first, ast.ImportFrom)
        and first.module == "gevent"
        and [alias.name for alias in first.names] == ["monkey"]
        and ast.unparse(second).startswith("monkey.patch_all(")
    )


def _is_call(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Call)
