"""The oldest Python that a robot has, 3.10 (JetPack 6, Humble): every module is executed on it.

`make test-humble` runs this with Python 3.10, where a name of a newer standard library fails. What
is not here (rclpy, messages, torch) is stood in for by names that can be anything. That every
name is 3.10's within functions too is mypy's part, with any Python: see pyproject.toml.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vla_ros

PACKAGE = Path(vla_ros.__file__).parent
GENERATED = ("msg", "srv", "action")
FILES = [
    p for p in sorted(PACKAGE.rglob("*.py")) if p.relative_to(PACKAGE).parts[0] not in GENERATED
]
oldest = pytest.mark.skipif(sys.version_info >= (3, 11), reason="make test-humble: Python 3.10")

STAND_IN = '''
import importlib, importlib.machinery, sys, types

class Anything(type):
    """A class that is also a decorator, a constant and a type with arguments."""
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})
    def __call__(cls, *args, **options):
        if cls.__init__ is not object.__init__ or cls.__module__ != __name__:
            return super().__call__(*args, **options)
        decorated = len(args) == 1 and callable(args[0]) and not isinstance(args[0], Anything)
        return args[0] if decorated else Anything("answer", (), {})
    def __getitem__(cls, key): return cls
    def __iter__(cls): return iter(())
    def __or__(cls, other): return cls
    def __ror__(cls, other): return cls
    def __lshift__(cls, other): return cls
    def __neg__(cls): return cls
    def __int__(cls): return 0
    def __index__(cls): return 0
    def __lt__(cls, other): return False
    def __truediv__(cls, other): return cls

class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

class Absent:
    """The last to be asked for a module: of what is not here, anything."""
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root in ABSENT and root != "vla_ros" and root not in sys.stdlib_module_names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec): return Module(spec.name)
    def exec_module(self, module): pass

class Messages(Absent):
    """The first to be asked: our own, which may be here, built for another Python."""
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] in (["vla_ros", kind] for kind in ("msg", "srv", "action")):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
'''

RUN = """
import traceback
sys.meta_path.insert(0, Messages())
sys.meta_path.append(Absent())
for name in {names!r}:
    try:
        importlib.import_module(name)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{{type(error).__name__}}: {{error}}"
        print(f"{{name}}: {{what}} ({{where.filename}}:{{where.lineno}})")
print("executed", len({names!r}))
"""


def imported(files: list[Path]) -> set[str]:
    """First names of everything that the files import."""
    found = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


def execute(names: list[str], tmp_path: Path) -> list[str]:
    """Import these modules in an empty process; what went wrong, a line each."""
    code = f"ABSENT = {sorted(imported(FILES))!r}\n" + STAND_IN + RUN.format(names=names)
    script = tmp_path / "execute.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(PACKAGE.parent)!r})\n" + code)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path
    )
    *wrong, last = done.stdout.splitlines() or [done.stderr]
    assert last == f"executed {len(names)}", done.stdout + done.stderr
    return wrong


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def test_the_grammar_is_that_of_the_oldest_python():
    for path in FILES:
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 10))


@oldest
def test_every_module_can_be_executed(tmp_path):
    names = [module_of(path) for path in FILES if path.name != "__main__.py"]
    assert len(names) > 200
    assert execute(names, tmp_path) == []


@oldest
@pytest.mark.parametrize(
    "line",
    ["from enum import StrEnum", "import tomllib", "from datetime import UTC", "ExceptionGroup"],
)
def test_a_planted_name_of_a_newer_python_is_found(line, tmp_path):
    (tmp_path / "planted.py").write_text(f"{line}\n")
    (wrong,) = execute(["planted"], tmp_path)
    assert wrong.startswith("planted: ")
