"""The hang of two participants in one process that look up types, provoked and counted by setting.

    make type-lookup ROUNDS=84        84 rounds of 6 processes of each of the settings, by turns

In a round some processes, of two participants each, make publishers of types that the others do
not know, all at one moment: each participant asks for the others' types while it is asked for its
own, and those of one process hand questions and answers to each other directly. Settings:

``shipped``        config/fastdds_shm.xml: nobody asks (``fastdds.type_propagation`` disabled)
``asking``         the same, and types are asked for, as Fast DDS does by itself
``no in-process``  asking, and what participants of one process say goes through the transport
``alone``          asking, one participant a process, and twice the processes

A process that has not ended in time while all its threads sleep hangs; gdb, where it is installed,
says whether in this cycle of locks. Exit status: 0 the shipped setting hung nowhere, 1 it did.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))  # a checkout with messages; else the installed package

PACKAGES = ("sensor", "geometry", "nav", "diagnostic", "trajectory", "visualization", "shape")
PROPAGATION = "<name>fastdds.type_propagation</name>\n              <value>{}</value>"
LIBRARY = "<library_settings><intraprocess_delivery>OFF</intraprocess_delivery></library_settings>"
SETTINGS = ("shipped", "asking", "no in-process", "alone")
START_S = 4.0  # until every process has made its participants
LIFE_S = 2.0  # after the moment at which all make their publishers
HANG_S = 25.0  # after the start: processes end after 7 s here


@dataclass
class LookupCounts:
    """Of one setting: processes that were started, and that hung, by the locks they held."""

    started: int = 0
    hung: Counter[str] = field(default_factory=Counter)
    stacks: list[str] = field(default_factory=list)


def take_part(number: int, of: int, participants: int, moment: float) -> None:
    """One process of a round."""
    import rclpy
    from rclpy.context import Context

    live = []
    for index in range(participants):
        context = Context()
        rclpy.init(context=context)
        name = f"asker_{number}_{index}"
        node = rclpy.create_node(
            name, context=context, start_parameter_services=False, enable_rosout=False
        )
        live.append((context, node))
    modules = [importlib.import_module(f"{package}_msgs.msg") for package in PACKAGES]
    types = [getattr(m, name) for m in modules for name in sorted(vars(m)) if name[0].isupper()]
    time.sleep(max(0.0, moment - time.time()))
    for index, kind in enumerate(types[number::of]):
        live[index % participants][1].create_publisher(kind, f"/type_{number}_{index}", 5)
    time.sleep(LIFE_S)
    for context, node in reversed(live):
        node.destroy_node()
        context.shutdown()


@contextmanager
def profiles() -> Iterator[dict[str, str]]:
    """A profile of Fast DDS for each of the settings."""
    from vla_ros.core.resources import config_path

    shipped = config_path("fastdds_shm.xml").read_text()
    asking = shipped.replace(PROPAGATION.format("disabled"), PROPAGATION.format("enabled"))
    if asking == shipped:
        raise SystemExit("the shipped profile does not say fastdds.type_propagation any more")
    between = asking.replace("</profiles>", f"</profiles>\n  {LIBRARY}")
    texts = dict(zip(SETTINGS, (shipped, asking, between, asking), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{index}.xml" for index, name in enumerate(texts)}
        for name, text in texts.items():
            files[name].write_text(text)
        yield {name: str(file) for name, file in files.items()}


def play_round(setting: str, processes: int, profile: str, seen: LookupCounts) -> None:
    """Start, wait, look into those that do not end."""
    from endurance.stacks import all_asleep, native
    from support.domain import leased_domain
    from support.nodes import ros_environment
    from vla_ros.ros.bringup.environment import PROFILES, profile_name

    participants = 1 if setting == "alone" else 2
    processes *= 2 // participants
    with leased_domain() as domain:
        env = {k: v for k, v in ros_environment(domain).items() if k not in PROFILES}
        env[profile_name(os.environ)] = profile
        words = [str(processes), str(participants), str(time.time() + START_S)]
        command = [sys.executable, __file__, "--member"]
        running = [
            subprocess.Popen([*command, str(number), *words], env=env, stdin=subprocess.DEVNULL)
            for number in range(processes)
        ]
        seen.started += processes
        until = time.monotonic() + HANG_S
        for process in running:
            while process.poll() is None:
                if time.monotonic() > until and all_asleep(process.pid):
                    stacks = native(process.pid)
                    known = stacks.count("TypeLookup") > 1
                    seen.hung["type lookup" if known else "another" if stacks else "not read"] += 1
                    seen.stacks.append(stacks)
                    process.kill()
                time.sleep(0.05)


def main() -> int:
    """Run, count, say."""
    if sys.argv[1:2] == ["--member"]:
        number, of, participants = map(int, sys.argv[2:5])
        take_part(number, of, participants, float(sys.argv[5]))
        return 0
    parser = argparse.ArgumentParser(prog="type_lookup", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="of each setting (20)")
    parser.add_argument("--processes", type=int, default=6, help="of a round (6)")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument("--stacks", type=Path, help="write the stacks of hung processes here")
    parser.add_argument("--json", action="store_true", help="one last line for a program")
    args = parser.parse_args()
    counts = {name: LookupCounts() for name in args.settings}
    with profiles() as files, suppress(KeyboardInterrupt):
        for number in range(args.rounds):
            for name, seen in counts.items():
                play_round(name, args.processes, files[name], seen)
            so_far = "; ".join(f"{n} {s.hung.total()} of {s.started}" for n, s in counts.items())
            print(f"round {number + 1} of {args.rounds}, hung: {so_far}", flush=True)
    for name, seen in counts.items():
        print(f"{name}: {seen.hung.total()} of {seen.started} processes hung {dict(seen.hung)}")
    if args.stacks:
        args.stacks.write_text(
            "\n\n".join(text for seen in counts.values() for text in seen.stacks)
        )
    if args.json:
        rows = {name: {"started": s.started, "hung": dict(s.hung)} for name, s in counts.items()}
        print(json.dumps(rows))
    return int(bool(counts["shipped"].hung) if "shipped" in counts else 0)


if __name__ == "__main__":
    sys.exit(main())
