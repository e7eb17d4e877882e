"""Rules of the house that no tool checks: who may import whom.

The map is the table in docs/explanation/architecture.md: a row a room, with what it may import.
What a person reads there is what these tests hold.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import vla_ros

PACKAGE = Path(vla_ros.__file__).parent
MAP = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "architecture.md"
GENERATED = {"msg", "srv", "action"}  # built from the interface files
ROS = (
    "ament_index_python",
    "cv_bridge",
    "launch",
    "launch_ros",
    "rcl_interfaces",
    "rclpy",
    "rosidl_runtime_py",
    "sensor_msgs",
    "std_msgs",
    "trajectory_msgs",
    "vla_ros.msg",
    "vla_ros.srv",
)
MAY_KNOW_ROS = ("bringup/", "cli/", "nodes/", "observe/")


@dataclass(frozen=True)
class Room:
    """A row of the map: folders ("engine/packed/") and files ("core.py"), and what they may
    import. ``depth`` counts the rows from the top of the house down."""

    places: tuple[str, ...]
    depth: int
    imports: tuple[str, ...]

    def fit(self, path: str) -> int:
        """How closely a path is described: 0, it is not of this room."""
        inside = [p for p in self.places if path == p or (p.endswith("/") and path.startswith(p))]
        return max(map(len, inside), default=0)

    def may_import(self, other: "Room") -> bool:
        """Only what stands below. A name stands for a room and the rooms within it, but the name
        of the room around one's own for that one alone; rooms within one's own need no name."""
        if other.depth <= self.depth:
            return False
        for place in other.places:
            around = tuple(n for n in self.imports if n.endswith("/") and self.fit_in(n))
            if place in self.imports or place.startswith(self.places):
                return True
            if place.startswith(tuple(n for n in self.imports if n not in around)):
                return True
        return False

    def fit_in(self, name: str) -> bool:
        return self.places[0].startswith(name)


@cache
def rooms() -> tuple[Room, ...]:
    """The rows of the map, from the top of the house down."""
    found: list[Room] = []
    for line in MAP.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and re.fullmatch(r"(`[a-z_/.]+`(, )?)+", cells[0]):
            places, imports = (tuple(re.findall(r"`([^`]+)`", cells[i])) for i in (0, 2))
            found.append(Room(places, len(found), imports))
    return tuple(found)


@cache
def room_of(path: str) -> Room:
    """The room of a file: the longest place that it is under."""
    home = max(rooms(), key=lambda room: room.fit(path))
    assert home.fit(path), f"{path} is in no room of {MAP.name}"
    return home


def files() -> list[str]:
    """Every Python file of the package but the generated ones, relative to it."""
    paths = (path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py")))
    outside = GENERATED | {"__init__.py", "__main__.py"}
    return [str(path) for path in paths if path.parts[0] not in outside]


def modules(source: str, package: list[str]) -> set[str]:
    """Every module a file imports, also inside functions; relative ones made absolute."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            found |= {f"{module}.{name.name}" for name in node.names}
    return found


@cache
def imports(path: str) -> set[str]:
    package = ["vla_ros", *Path(path).parts[:-1]]
    return modules((PACKAGE / path).read_text(encoding="utf-8"), package)


@cache
def own(module: str) -> str | None:
    """The file or folder of the package that a dotted name is in; None for other packages."""
    words = module.split(".")
    if words[0] != "vla_ros" or len(words) == 1:
        return None
    for count in range(len(words), 1, -1):
        path = "/".join(words[1:count])
        if (PACKAGE / f"{path}.py").is_file():
            return f"{path}.py"
        if (PACKAGE / path).is_dir():
            return f"{path}/"
    return None


def offences(path: str, forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path} imports {module}"
        for module in sorted(imports(path))
        if any(module == name or module.startswith(f"{name}.") for name in forbidden)
    ]


def strays(path: str) -> list[str]:
    """What a file imports from rooms that its own may not look into."""
    room = room_of(path)
    found = []
    for module in sorted(imports(path)):
        target = own(module)
        if target is None or target.split("/")[0] in GENERATED:
            continue
        if room_of(target) == room or target == "__init__.py" or room.may_import(room_of(target)):
            continue
        found.append(f"{path} imports {module}: {room.places[0]} may not import {target}")
    return found


PLACES = [place for room in rooms() for place in room.places]


def test_the_map_names_every_room():
    top = {path.name + "/" for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    top |= {path.name for path in PACKAGE.glob("*.py")}
    top -= {f"{name}/" for name in GENERATED} | {"__init__.py", "__main__.py"}
    assert top <= set(PLACES)
    assert len(PLACES) == len(set(PLACES))
    gone = [place for place in PLACES if not (PACKAGE / place).exists()]
    assert not gone, f"{MAP.name} names what is not there: {gone}"


def test_arrows_point_down():
    """A room names only rooms that stand below it in the map."""
    depths = {place: room.depth for room in rooms() for place in room.places}
    for room in rooms():
        above = [name for name in room.imports if depths.get(name, 1000) <= room.depth]
        assert not above, f"{room.places[0]} may import {', '.join(above)}, not below it"


@pytest.mark.parametrize("room", rooms(), ids=lambda room: room.places[0])
def test_a_room_imports_what_the_map_allows(room):
    found = [line for path in files() if room_of(path) == room for line in strays(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", rooms(), ids=lambda room: room.places[0])
def test_the_map_allows_nothing_that_nobody_uses(room):
    targets = {own(m) for path in files() if room_of(path) == room for m in imports(path)}
    idle = [n for n in room.imports if not any(t and t.startswith(n) for t in targets)]
    assert not idle, (
        f"{room.places[0]} imports nothing of {', '.join(idle)} any more: correct the map"
    )


def test_a_room_names_only_what_is_in_it():
    """Double backticks in the docstring of a folder are names of its files and folders."""
    maps = 0
    for path in (path for path in files() if path.endswith("__init__.py")):
        said = ast.get_docstring(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))) or ""
        room = (PACKAGE / path).parent
        names = re.findall(r"``([a-z0-9_]+)``", said)
        missing = [
            n for n in names if not any((room / n).with_suffix(s).exists() for s in ("", ".py"))
        ]
        assert not missing, f"{path} speaks of {', '.join(missing)}: there is no such file"
        maps += bool(names)
    assert maps > 10


def test_the_inner_rooms_know_no_ros():
    inner = [path for path in files() if not path.startswith(MAY_KNOW_ROS)]
    assert len(inner) > 100
    assert not [line for path in inner for line in offences(path, ROS)]


def test_the_command_line_starts_without_ros_or_torch():
    """`vla-ros --help` and `vla-ros bench` must work where only numpy and PyYAML are."""
    heavy = ("rclpy", "torch", "mujoco", "transformers", "matplotlib")
    for path in ("cli/main.py", "cli/__init__.py", "bringup/graph_file.py", "resources.py"):
        assert not offences(path, heavy)


def test_the_command_line_holds_verbs_only():
    """One verb a file or a folder: everything else has a room of its own."""
    from vla_ros.cli.main import VERBS

    names = {Path(path).parts[1].removesuffix(".py") for path in files() if path.startswith("cli/")}
    assert names - {"__init__", "main", "defaults"} == set(VERBS)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import rclpy", True),
        ("def f():\n    from sensor_msgs.msg import Image", True),
        ("from ..msg import ActionCommand", True),
        ("from vla_ros import msg", True),
        ("import rclpython", False),
        ("from vla_ros.core import Action", False),
    ],
)
def test_the_rule_sees_each_kind_of_import(source, found):
    named = modules(source, ["vla_ros", "engine"])
    known = [m for m in named if any(m == name or m.startswith(f"{name}.") for name in ROS)]
    assert bool(known) is found


def test_no_file_of_a_stranger_can_run_code():
    """Checkpoints are safetensors, configuration is JSON or plain YAML."""
    forbidden = (
        r"torch\.load\((?!.*weights_only=True)",
        r"\bpickle\.(load|Unpickler)\b",
        r"allow_pickle=True",
        r"yaml\.(unsafe_|full_)?load\(",
        r"trust_remote_code=True",
        r"(?<![\w.])(eval|exec)\(",
    )
    arrays = "sim/libero/arrays.py"  # its unpickler admits nothing but an array; it has tests
    for path in files():
        if path == arrays:
            continue
        for pattern in forbidden:
            found = re.search(pattern, (PACKAGE / path).read_text(encoding="utf-8"))
            assert not found, f"{path}: {found and found.group()}"
