"""Which camera drivers the policy node hears: sent, received and answered images, as a table.

    make cameras                driver's reliability x size x Fast DDS profile, 10 s each
    make cameras ARGS="--reader best_effort"        the same for another reader

Exit status: 0; it measures, and judges nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))

from std_msgs.msg import String

from support.domain import leased_domain
from support.nodes import Program, ros_environment, start_node
from support.ros import RosPeer
from vla_ros.core.types import CommandKind
from vla_ros.msg import ActionCommand, PolicyStatus
from vla_ros.ros.common import qos

DRIVER = str(Path(__file__).with_name("camera_driver.py"))
PROFILE = "FASTDDS_DEFAULT_PROFILES_FILE"
SIZES = ("640x480", "1280x720")


def driver_environment(env: Mapping[str, str], profile: bool) -> dict[str, str]:
    """Of a driver that was started with this package's Fast DDS profile, or without one."""
    return {name: value for name, value in env.items() if profile or name != PROFILE}


def measure(reliability: str, size: str, profile: bool, reader: str, frames: int) -> dict[str, int]:
    """Of ``frames`` images at 30 Hz those that the node was given, and those acted upon."""
    with leased_domain() as domain:
        env = ros_environment(domain)
        parameters = {
            "policy": "zero",
            "detect_frozen": False,
            "control_rate_hz": 50.0,
            "camera_rate_hz": 30.0,
            "cameras.main.reliability": reader,
        }
        node = start_node("policy", env, parameters)
        peer = RosPeer(domain)
        try:
            peer.bring_up("/policy", 60.0)
            status = peer.inbox(PolicyStatus, "/policy/status", qos.LATCHED)
            commands = peer.inbox(ActionCommand, "/policy/action", qos.ACTION)
            say = peer.publisher(String, "instruction", qos.LATCHED)
            say.publish(String(data="hold still"))
            status.wait(lambda m: m.instruction == "hold still", 20.0)
            words = [reliability, size, str(frames)]
            driver = Program(
                "driver", [sys.executable, DRIVER, *words], driver_environment(env, profile)
            )
            driver.wait(frames / 30 + 60.0)
            status.wait_new(timeout=10.0)
            acted = {
                (m.observation_stamp.sec, m.observation_stamp.nanosec)
                for m in commands.messages
                if m.kind == CommandKind.POLICY
            }
            received = status.last.frames_received
            return {"sent": frames, "received": received, "answered": len(acted)}
        finally:
            peer.close()
            node.kill()


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="cameras", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=300, help="of each driver, at 30 Hz (300)")
    parser.add_argument("--reader", default="auto", help="auto, reliable or best_effort (auto)")
    parser.add_argument("--json", action="store_true", help="one last line for a program")
    args = parser.parse_args()
    rows = []
    print("| driver | size | its profile | received | answered |\n|---|---|---|---|---|")
    for size in SIZES:
        for reliability in ("reliable", "best_effort"):
            for profile in (False, True):
                found = measure(reliability, size, profile, args.reader, args.frames)
                share = {name: 100 * found[name] / found["sent"] for name in found}
                print(
                    f"| {reliability} | {size} | {'ours' if profile else 'none'} |"
                    f" {share['received']:.1f} % | {share['answered']:.1f} % |",
                    flush=True,
                )
                rows.append({"driver": reliability, "size": size, "profile": profile, **found})
    if args.json:
        print(json.dumps({"reader": args.reader, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
