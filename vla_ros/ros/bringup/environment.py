"""Environment of every process of a graph: variables, a ROS domain, security, shared memory.

Variables that the user has set are never changed. Call :func:`prepare` before rclpy is initialized:
the middleware reads them once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vla_ros.core.errors import UserError
from vla_ros.core.files import BadFile, open_file
from vla_ros.core.private import open_lock, temporary_folder
from vla_ros.core.resources import config_path, share
from vla_ros.ros.common.ending import PARENT
from vla_ros.ros.common.surroundings import check_surroundings

#: Variables of Fast DDS's profile: for version 3 (Kilted on), which warns of the other's name, and
#: version 2 (Jazzy, Humble), which ignores it.
PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
LOCALHOST = "LOCALHOST"  # the range of discovery that is this machine
_KILTED_RCLPY = 8  # Jazzy has 7, Kilted 9

#: Code in front of that of `python -c`: PYTHONSAFEPATH's effect, which Python 3.10 ignores.
SAFE_PATH = "" if sys.version_info >= (3, 11) else "import sys; sys.path.remove('')\n"


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that ``environment`` lacks, with their values."""
    wanted = {
        # Discovery by multicast on every network is slow, and other machines could send commands.
        "ROS_AUTOMATIC_DISCOVERY_RANGE": LOCALHOST,
        profile_name(environment): profile(environment) or str(shipped_profile(environment)),
        "PYTHONUNBUFFERED": "1",
        # A checkout in the working directory must not shadow the installed package (3.11+).
        "PYTHONSAFEPATH": "1",
    }
    if "ROS_DISTRO" not in environment:  # ROS wheels: no setup file was sourced
        wanted["AMENT_PREFIX_PATH"] = sys.prefix
    if environment.get("ROS_DISTRO") == "humble":  # where discovery has no range to choose
        wanted.pop("ROS_AUTOMATIC_DISCOVERY_RANGE")
        wanted["ROS_LOCALHOST_ONLY"] = "1"
    missing = {name: value for name, value in wanted.items() if not environment.get(name)}
    if "ROS_LOCALHOST_ONLY" in environment:  # the older variable for it
        missing.pop("ROS_AUTOMATIC_DISCOVERY_RANGE", None)
    return missing


def ends_with_launch() -> dict[str, str]:
    """Variable by which a process that a launch file starts ends with the launch: `ros2 launch`
    that gets SIGTERM or SIGKILL leaves its nodes alone."""
    return {PARENT: str(os.getpid())}


def shipped_profile(environment: Mapping[str, str]) -> Path:
    """Shipped profile for the reach of the graph: bound to the loopback, or to every address.

    Humble binds by itself (``ROS_LOCALHOST_ONLY``).
    """
    older = {"1": LOCALHOST, "0": "SUBNET"}.get(environment.get("ROS_LOCALHOST_ONLY", ""), "")
    reach = older or environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE") or LOCALHOST
    peers = any(environment.get(name) for name in ("ROS_STATIC_PEERS", "ROS_DISCOVERY_SERVER"))
    here = reach == LOCALHOST and not peers and environment.get("ROS_DISTRO") != "humble"
    return config_path("fastdds_localhost.xml" if here else "fastdds_shm.xml")


def profile_name(environment: Mapping[str, str]) -> str:
    """Variable that the Fast DDS of this ROS 2 reads, sourced or from wheels."""
    distro = environment.get("ROS_DISTRO", "")
    if not distro:
        try:
            major = int(version("ros-rclpy").split(".")[0])
        except (PackageNotFoundError, ValueError):
            return PROFILES[0]
        return PROFILES[major < _KILTED_RCLPY]
    return PROFILES[distro in ("humble", "jazzy")]


def profile(environment: Mapping[str, str]) -> str:
    """Fast DDS profile that the user has set, under either name; "" if none."""
    return next(filter(None, map(environment.get, PROFILES)), "")


def prepare() -> None:
    """Put the missing variables into this process's own environment. UserError: what is there
    cannot be."""
    check_surroundings()
    os.environ.update(defaults(os.environ))


def python_path(environment: Mapping[str, str]) -> str:
    """PYTHONPATH under which a child finds this very copy of the package."""
    parts = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    root = str(share())
    in_checkout = os.path.isfile(os.path.join(root, "setup.py"))
    return os.pathsep.join(dict.fromkeys([root, *parts] if in_checkout else parts))


# A ROS domain without another participant on this machine.


LAST_DOMAIN = 100  # above, a domain's ports lie in Linux's range of ephemeral ports
_ELSEWHERE = ("ROS_LOCALHOST_ONLY", "ROS_STATIC_PEERS", "ROS_DISCOVERY_SERVER")


def free_domain() -> int:
    """Domain, 1 to LAST_DOMAIN, without a participant on this machine. Raises UserError."""
    for domain in _candidates():
        if _unused(domain):
            return domain
    raise UserError(f"all ROS domains 1 to {LAST_DOMAIN} are in use; give one with --domain-id")


@contextlib.contextmanager
def leased_domain() -> Iterator[int]:
    """Free domain that no other lease of this user has until the end of the `with`.

    For graphs that start side by side: a domain shows its first participant only a moment after
    it was chosen. Raises UserError.
    """
    folder = temporary_folder("vla_ros_domains")
    for domain in _candidates():
        with contextlib.ExitStack() as held:
            try:
                lock = open_lock(folder / str(domain))
                held.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            if _unused(domain):
                yield domain
                return
    raise UserError(f"all ROS domains 1 to {LAST_DOMAIN} are in use: end what runs in them")


def isolate(domain: int) -> None:
    """Keep this process and its children to this machine and to ``domain``, whatever the shell
    has set. Before rclpy is initialized."""
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    for name in _ELSEWHERE:
        os.environ.pop(name, None)


def _candidates() -> Iterator[int]:
    for i in range(LAST_DOMAIN):
        yield 1 + (os.getpid() + i) % LAST_DOMAIN


def _unused(domain: int) -> bool:
    """True where no participant is in the domain: the first one listens at this port (RTPS)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", 7410 + 250 * domain))
        except OSError:
            return False
    return True


# SROS 2: the enclave of a node, and the check that keys are used at all.
#
# The policies of the enclaves are in config/security; docs/how-to/secure-the-graph.md.


ENABLE = "ROS_SECURITY_ENABLE"
STRATEGY = "ROS_SECURITY_STRATEGY"
KEYSTORE = "ROS_SECURITY_KEYSTORE"
#: The enclave of a process whatever its arguments say, and of its children: empty is none.
OVERRIDE = "ROS_SECURITY_ENCLAVE_OVERRIDE"


def enclave_of(folder: str, node: str) -> str:
    """Enclave of ``node`` below ``folder``: /vla_ros and policy are /vla_ros/policy."""
    return f"/{folder.strip('/')}/{node}".replace("//", "/")


def check_enclave(folder: str, environment: Mapping[str, str]) -> None:
    """Raise UserError where an enclave is given and would protect nothing.

    rcl ignores an enclave unless ``ROS_SECURITY_ENABLE`` is exactly ``true``, and without
    ``Enforce`` a node whose keys are not found joins the graph without any (rcl, security.c).
    """
    if not folder:
        return
    if not folder.startswith("/"):
        raise UserError(f"enclave {folder!r}: must begin with /, such as /vla_ros")
    for name, wanted in ((ENABLE, "true"), (STRATEGY, "Enforce")):
        found = environment.get(name, "")
        if found != wanted:
            raise UserError(
                f"enclave {folder}: {name} is {found or 'not set'}, so keys would protect nothing:"
                f" export {name}={wanted}"
            )
    if not environment.get(KEYSTORE):
        raise UserError(f"enclave {folder}: {KEYSTORE} is not set: export where the keys are")


# Leftovers of killed processes in /dev/shm: Fast DDS removes its segments only at a clean end.
#
# With the shipped profile a participant has a segment of 32 MB, so a day of `kill -9` fills the
# memory. A segment is a leftover when no process maps it or holds its lock, which Fast
# DDS keeps for as long as it lives (also in another container that shares /dev/shm).


SHM = Path("/dev/shm")
MIN_AGE_S = 10.0  # a segment that is just being made has no lock yet
_NAME = re.compile(r"(?:sem\.)?(?P<base>(?:fastdds|fastrtps)_(?:port\d+|[0-9a-f]{16}))(?:_\w+)?")
_LOCKS = ("_el", "_sl")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A segment or port with its lock and semaphore."""

    name: str
    files: tuple[Path, ...]
    size: int  # bytes of memory that it holds


def find_leftovers(
    folder: Path = SHM, proc: Path = Path("/proc"), min_age_s: float = MIN_AGE_S
) -> list[Leftover]:
    """Segments of this user that no living process uses."""
    groups: dict[str, list[Path]] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match:
                groups.setdefault(match["base"], []).append(path)
    mapped = _mapped_names(proc) if groups else set()
    return [
        Leftover(name, tuple(sorted(files)), _size(files))
        for name, files in sorted(groups.items())
        if name not in mapped and _abandoned(files, min_age_s)
    ]


def foreign_segments(folder: Path = SHM) -> dict[int, int]:
    """How many segments of Fast DDS other users have, by their number: those users' nodes and this
    one's see each other, and cannot read each other's images."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and path.name == match["base"] and "port" not in path.name:
                with contextlib.suppress(OSError):
                    owner = path.stat().st_uid
                    found[owner] = found.get(owner, 0) + 1
    found.pop(os.getuid(), None)
    return found


def remove(leftovers: Iterable[Leftover]) -> int:
    """Delete them; returns the bytes that came free."""
    freed = 0
    for leftover in leftovers:
        for path in leftover.files:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        freed += leftover.size
    return freed


def _abandoned(files: Iterable[Path], min_age_s: float) -> bool:
    for path in files:
        try:
            facts = path.stat()
        except FileNotFoundError:
            return False  # it is being removed just now
        if facts.st_uid != os.getuid() or time.time() - facts.st_mtime < min_age_s:
            return False
        if path.name.endswith(_LOCKS) and _locked(path):
            return False
    return True


def _locked(path: Path) -> bool:
    try:
        with open_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, BadFile):
        return True
    return False


def _mapped_names(proc: Path) -> set[str]:
    """Names of the segments that a process has in its memory, as far as /proc may be read."""
    found: set[str] = set()
    for maps in proc.glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            for line in maps.read_text(errors="replace").splitlines():
                name = os.path.basename(line.rpartition(" ")[2])
                match = _NAME.fullmatch(name)
                if match:
                    found.add(match["base"])
    return found


def _size(files: Iterable[Path]) -> int:
    total = 0
    for path in files:
        with contextlib.suppress(OSError):
            total += path.stat().st_blocks * 512
    return total
