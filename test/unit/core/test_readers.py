"""Every reader of bytes goes through core/files.py and core/yaml_files.py, whose limits hold.

A new ``json.loads(path.read_text())`` anywhere in the package fails here.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "vla_ros"
#: Functions of modules that parse or open whatever they are given.
PARSERS = {
    "json": {"load", "loads"},
    "yaml": {"load", "safe_load", "load_all", "safe_load_all", "full_load", "compose", "parse"},
    "np": {"load", "fromfile", "loadtxt", "genfromtxt", "memmap"},
    "torch": {"load"},
    "pickle": {"load", "loads"},
    "tomllib": {"load", "loads"},
    "ElementTree": {"parse", "fromstring", "iterparse"},
    "os": {"open"},
    "io": {"open"},
    "tempfile": {"gettempdir", "mktemp"},  # a folder in which others prepare what we find
    "Tokenizer": {"from_file", "from_buffer", "from_str"},
}
METHODS = {"read_text", "read_bytes"}  # of a path
#: File -> what it may do itself, and why.
ALLOWED = {
    "core/files.py": ("json.loads np.load os.open", "the one place"),
    "core/origin.py": ("read_text", "/proc"),
    "core/private.py": ("os.open tempfile.gettempdir", "the one place of locks"),
    "core/resources.py": ("ElementTree.parse", "the package's own package.xml"),
    "core/signals.py": ("os.open", "/dev/null"),
    "core/urdf.py": ("ElementTree.fromstring", "the one place of robots' descriptions"),
    "engine/convert/pickles.py": ("torch.load", "the one place, behind refuse_broken"),
    "engine/io/lock.py": ("os.open", "a folder, to be locked"),
    "engine/io/tokenizer_file.py": ("Tokenizer.from_str", "the one place, behind its checks"),
    "engine/layers/devices.py": ("read_text", "/proc"),
    "engine/memory.py": ("read_text", "/proc and /sys"),
    "runtime/worker/memory.py": ("read_text", "/proc and /sys"),
    "runtime/worker/process.py": ("read_text", "/proc"),
    "runtime/worker/wire.py": ("json.loads", "messages of our own worker"),
    "runtime/worker/worker.py": ("os.open pickle.loads", "/dev/null, and our own parent's task"),
    "policies/lerobot/environment.py": ("read_bytes", "the package's own requirements"),
    "sim/so101/world.py": ("np.fromfile", "a mesh of the installed package that MuJoCo reads too"),
    "sim/libero/environment.py": ("np.load", "bytes of a member of a list of hashes"),
    "data/lerobot/wire.py": ("json.loads", "messages of our own process"),
    "data/bag_writer.py": ("read_text", "the package's own messages"),
    "data/episodes/store.py": (".open", "the records that it writes, locked"),
    "data/episodes/play.py": ("read_bytes", "a file that it has just written"),
    "ros/common/given.py": ("tempfile.gettempdir", "to know what launch has written, by its name"),
    "ros/bringup/environment.py": ("read_text", "/proc"),
    "ros/describe.py": ("read_text", "the package's own pages"),
    "cli/contract.py": ("read_text", "a file that it has just written"),
    "cli/doctor.py": ("read_text ElementTree.parse", "/proc, and the user's profile of Fast DDS"),
}


def readers(source: str) -> list[tuple[int, str]]:
    """Line and name of everything in a module that reads or parses by itself."""
    found = []
    tree = ast.parse(source)
    managed = {
        item.context_expr
        for node in ast.walk(tree)
        if isinstance(node, ast.With | ast.AsyncWith)
        for item in node.items
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found += [
                (node.lineno, f"{node.module}.{name.name}")
                for name in node.names
                if name.name in PARSERS.get(str(node.module).split(".")[-1], ())
            ]
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            found.append((node.lineno, "open"))
        if not isinstance(called, ast.Attribute):
            continue
        owner = called.value
        names = {n.id for n in ast.walk(owner) if isinstance(n, ast.Name)}
        last = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if called.attr in PARSERS.get(last, ()):
            found.append((node.lineno, f"{last}.{called.attr}"))
        elif called.attr in METHODS and names != {"files"}:
            found.append((node.lineno, called.attr))
        elif called.attr == "open" and _reads(node, node in managed):
            found.append((node.lineno, ".open"))
    return found


def _reads(call: ast.Call, managed: bool) -> bool:
    """Whether this may be a path's ``open`` to read: by its mode, or as a ``with`` without any."""
    given = [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
    if not given:
        return managed
    mode = given[0].value if isinstance(given[0], ast.Constant) else ""
    return isinstance(mode, str) and 0 < len(mode) <= 3 and ("r" in mode or "+" in mode)


def test_only_one_place_reads_a_strangers_file():
    found: dict[str, set[str]] = {}
    lines = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.split("/")[0] in ("msg", "srv", "action"):
            continue
        allowed = ALLOWED.get(name, ("", ""))[0].split()
        for line, what in readers(path.read_text(encoding="utf-8")):
            found.setdefault(name, set()).add(what)
            if what not in allowed:
                lines.append(f"vla_ros/{name}:{line} has {what}: read it by vla_ros.core.files")
    assert not lines, "\n".join(lines)
    allowed = {name: set(what.split()) for name, (what, _) in ALLOWED.items()}
    assert {name: found.get(name, set()) for name in allowed} == allowed, "no longer needed"


@pytest.mark.parametrize(
    "line",
    [
        "json.loads(path.read_text())",
        "json.load(stream)",
        "x = yaml.safe_load(text)",
        "yaml.compose(text, yaml.SafeLoader)",
        "np.load(path)",
        "open(path)",
        "with path.open() as f: pass",
        "path.open('rb')",
        "path.open(mode='r')",
        "(folder / 'x').open('r+b')",
        "os.open(path, os.O_RDONLY)",
        "Path(x).read_bytes()",
        "from json import loads",
        "tokenizers.Tokenizer.from_file(path)",
        "xml.etree.ElementTree.parse(path)",
    ],
)
def test_the_judge_sees_a_new_reader(line):
    assert readers(line)


@pytest.mark.parametrize(
    "line",
    [
        "read_json(path)",
        "files.read_text(path)",
        "motion.open(limits)",
        "path.open('w')",
        "self._file.open('ab')",
        "session.open()",
        "json.dumps(x)",
    ],
)
def test_the_judge_lets_others_be(line):
    assert not readers(line)
