"""Drive the other robot and print its figures.

    make second-robot            # or: cd test && python -m second_robot --stops 10
    make second-robot ARGS="--limits '{velocity_limits: [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]}' --leap 0.6"

It goes to a goal pose, then to and fro: how many frames that could be answered were, how old the
observation was, and how long the arm took to stand still after each kind of stop. With --limits:
how it moves within these parameters of the policy, and how soon it goes on after a camera that
stalls, a clock that steps and a worker that dies.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))  # a checkout with messages; else the installed package

import yaml

from second_robot.arm import Options
from second_robot.session import GOAL, REMAPPINGS, AnsweredFrames, Session, to_and_fro, to_goal
from support.domain import leased_domain
from support.motion_listener import MotionListener
from support.nodes import Program, ros_environment, start_node
from support.ros import RosPeer
from vla_ros.core.types import PolicyState as State
from vla_ros.runtime.worker.wire import WorkerLimits


def main() -> int:
    """0: it did what it was told and stopped every time; 1: an assertion says what it did not."""
    parser = argparse.ArgumentParser(prog="second_robot", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of motion measured (20)")
    parser.add_argument("--stops", type=int, default=5, help="of each kind (5)")
    parser.add_argument("--arm", default="{}", help="the arm's options, JSON: see arm.py")
    parser.add_argument("--limits", help="parameters of the policy to try, YAML or JSON")
    parser.add_argument("--leap", type=float, default=0.0, help="of the motion, rad, every 4 s (0)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, leased_domain() as domain:
        env = ros_environment(domain)
        os.environ.update(env)
        try:
            if args.limits is not None:
                limited(Path(folder), env, domain, args)
                return 0
            reach(Path(folder), env, domain, args.arm)
            wave(Path(folder), env, domain, args)
        except AssertionError as error:
            print(f"failed: {error}")
            return 1
    return 0


class Graph:
    """A session whose processes end with it, and whose motion is judged then."""

    def __init__(
        self, env: dict[str, str], domain: int, replay: Path, options: str, **parameters: object
    ) -> None:
        self._started: list[Program] = []
        self._ros = RosPeer(domain)
        self._motion = MotionListener(domain, remappings=REMAPPINGS)

        def spawn(*words: object, **named: object) -> Program:
            program = start_node(words[0], env, *words[1:], **named)  # type: ignore[arg-type]
            self._started.append(program)
            return program

        try:
            self.session = Session(
                spawn, self._ros, env, self._started, replay, options, **parameters
            )
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Session:
        return self.session

    def __exit__(self, *_: object) -> None:
        for program in self._started:
            program.kill()
        self._ros.close()
        broken = self._motion.leave()
        assert not broken, "\n".join(["the motion broke promises:", *broken])


def reach(folder: Path, env: dict[str, str], domain: int, options: str) -> None:
    """To the goal pose."""
    with Graph(env, domain, to_goal(folder), options) as session:
        began = time.monotonic()
        session.begin("reach")
        session.wait_for(GOAL)
        session.check_trajectories()
        print(f"goal pose reached after {time.monotonic() - began:.1f} s, to 10 mrad a joint")


def wave(folder: Path, env: dict[str, str], domain: int, args: argparse.Namespace) -> None:
    """To and fro, an action a frame: figures of the motion, then stops of each kind."""
    motion = to_and_fro(folder, args.seconds + 20.0 * args.stops + 60.0, chunks=False)
    with Graph(env, domain, motion, args.arm) as session:
        session.begin("wave")
        tell(session.answers(args.seconds))
        stops: dict[str, list[float]] = {"~/stop": [], "cameras covered": [], "worker killed": []}
        for number in range(args.stops):
            stops["~/stop"].append(session.stop_s())
            session.rig.call("resume")
            session.wait_for_motion()
            began = time.monotonic_ns()
            session.blind(True)
            stops["cameras covered"].append(session.stopped_after_s(began))
            session.blind(False)
            session.wait_for_motion()
            if number < WorkerLimits().max_respawns:  # more are a fault
                stops["worker killed"].append(session.pause_after_s(session.kill_worker()))
                session.rig.runs_again(number + 1)
                session.wait_for_motion()
        count = len(session.trajectories.messages)
        print(f"trajectories that were over when the arm had them: {session.refused} of {count}")
    print("stands still after     median      max   of")
    for kind, times in stops.items():
        middle, most = sorted(times)[len(times) // 2] * 1e3, max(times) * 1e3
        print(f"  {kind:<16} {middle:8.0f} ms {most:5.0f} ms {len(times):4}")


PATIENCE_S = 6.0  # for it to go on by itself


def limited(folder: Path, env: dict[str, str], domain: int, args: argparse.Namespace) -> None:
    """To and fro within other limits, then through what ends a motion."""
    parameters = yaml.safe_load(args.limits)
    motion = to_and_fro(folder, args.seconds + 60.0, chunks=False, leap=args.leap)
    with Graph(env, domain, motion, args.arm, **parameters) as session:
        session.rig.instruct("wave")
        session.rig.expect(State.RUNNING)
        told = session.motion(args.seconds)
        print(f"limits: {parameters or 'none but the bounds'}; leaps of {args.leap:g} rad")
        print(
            f"own action in {100 * told.share:.0f} % of the periods, {told.clamped} clamped,"
            f" {told.held} statuses in HOLD; fastest joint told {told.told:.2f} rad/s,"
            f" measured {told.fastest:.2f} rad/s; {told.state}: {told.reason}"
        )
        for name, trouble in TROUBLES.items():
            over = trouble(session)
            back_s = session.runs_again_s(over, PATIENCE_S)
            status = session.rig.status.wait_new()
            said = f"goes on after {back_s * 1e3:.0f} ms" if math.isfinite(back_s) else "stays"
            print(f"  {name:<34} {said}; {State(status.state).name}: {status.reason}")


def stalled(session: Session) -> float:
    session.blind(True)
    time.sleep(1.2)
    session.blind(False)
    return time.monotonic()


def stepped(session: Session) -> float:
    session.set_clock(1000.0)
    time.sleep(0.6)
    session.set_clock(Options.clock_offset_ms)
    return time.monotonic()


def killed(session: Session) -> float:
    session.rig.worker(signal.SIGKILL)
    return time.monotonic()


#: What ends a motion, and when its cause was over (steady, s).
TROUBLES: dict[str, Callable[[Session], float]] = {
    "the cameras stall for 1.2 s": stalled,
    "its clock is 1 s ahead for 0.6 s": stepped,
    "the worker is killed": killed,
}


def tell(found: AnsweredFrames) -> None:
    share = 100.0 * found.answered / max(1, found.offered)
    print(
        f"answered {found.answered} of {found.offered} frames offered ({share:.1f} %)\n"
        f"observation age at publication: p50 {found.p50_ms:.0f} ms, p99 {found.p99_ms:.0f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
