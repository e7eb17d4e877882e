"""`python -m check_suite`: planted faults on episodes of the tabletop or of the SO-101, named or
not, as a table.

Every result is a line of a tracked file, `results.jsonl`, and a run that was stopped goes on where
it was, also on another machine: a line is of the code that made it, and void once that changed.

A fault is named right where the name is the planted one's; a wrong name is any other; nothing named
is a miss, or unseen where the policy hardly errs more with the fault than without. On clean
recordings, and where no hypothesis repairs the fault, any name is wrong.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from check_suite import episodes, plant, so101
from check_suite.plant import Fault
from vla_ros.core.types import Floats
from vla_ros.data.check.asking import Asker
from vla_ros.data.check.diagnosis import Diagnosis, Search
from vla_ros.data.check.hypotheses import Inputs, all_of
from vla_ros.data.check.recording import Recording
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import Policy, PolicySpec, load_policy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / "build" / "check-suite"
#: What decides about a name: files of the search and of the planted faults.
_SEARCH = (*sorted((ROOT / "vla_ros/data/check").glob("*.py")), ROOT / "vla_ros/core/adaptation.py",
           HERE / "plant.py")  # fmt: skip
CODE = {
    "tabletop": (*_SEARCH, HERE / "episodes.py"),
    "so101": (*_SEARCH, HERE / "so101.py"),
}
#: Two at once: each by its name.
PAIRS = (
    ("BGR", "gripper 1..0"),
    ("180 degrees", "action: sign of y"),
    ("BGR", "state: sign of x"),
    ("mirrored", "actions x0.5"),
    ("state: x and y exchanged", "gripper -1..1"),
    ("frame turned z90", "gripper 1..0"),
    ("BGR", "180 degrees"),
    # of the SO-101
    ("main: bgr", "gripper 1..0"),
    ("main: 180", "wrist: 180"),
    ("wrist: mirror", "joint: sign of shoulder_pan"),
    ("cameras exchanged", "gripper -1..1"),
    ("joint: shoulder_lift 17 degrees off", "main: bgr"),
)


def main() -> int:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(prog="check_suite", description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", nargs="+", default=["shipped:tabletop-flow"])
    parser.add_argument("--world", choices=CODE, default="tabletop")
    parser.add_argument("--name", default="", help="of the checkpoint in the results")
    parser.add_argument("--frames", type=int, nargs="+", default=[24])
    parser.add_argument("--clean", type=int, default=10, help="clean sets of each size (10)")
    parser.add_argument("--only", default="", help="faults whose name has this word")
    parser.add_argument("--episodes", type=int, default=4, help="of each family (4)")
    parser.add_argument("--out", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("--drawn", type=int, default=0, metavar="N",
                        help="of faults of the actions alone N drawn sets each, with the repairs"
                        " that ask nothing: a second of CPU each")  # fmt: skip
    parser.add_argument("--labels", nargs="+", default=["clean", "disturbed"])
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = _read(args.out)
    if not args.table:
        for checkpoint in args.checkpoint:
            _run(args, checkpoint, {_key(one) for one in done})
    print(table(_read(args.out)))
    return 0


def _run(args: argparse.Namespace, checkpoint: str, done: set[tuple[Any, ...]]) -> None:
    engine = EngineOptions(checkpoint, dtype="float32", num_threads=1)
    spec = PolicySpec("vla", engine=engine)
    policy = load_policy(so101.spec(spec) if args.world == "so101" else spec)
    needs = {"state"} if policy.info.state_dim else set()
    for labels in args.labels:
        disturbed = labels == "disturbed"
        if args.world == "so101":
            whole = so101.load(so101.make(FOLDER, 4 * args.episodes, disturbed), 96)
        else:
            file = episodes.make(FOLDER, args.episodes, disturbed)
            whole = episodes.load(file, 96, bool(needs), False)
        for name, wanted, planted, frames in _cases(args, whole, needs, labels):
            case = {"checkpoint": args.name or checkpoint, "labels": labels, "fault": name,
                    "frames": frames, "world": args.world, "code": _code(args.world)}  # fmt: skip
            if _key(case) in done:
                continue
            begun = time.process_time()
            found = _check(policy, planted, args.drawn > 0)
            case |= {"wanted": wanted, "seconds": round(time.process_time() - begun, 1)}
            case |= _outcome(found)
            print(f"{frames:3d} {labels:9s} {name:34s} -> {case['named'] or 'nothing'}"
                  f" ({case['before']:.2f} to {case['after']:.2f})", flush=True)  # fmt: skip
            with args.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(case) + "\n")


def _cases(
    args: argparse.Namespace, whole: Recording, needs: set[str], labels: str
) -> Iterator[tuple[str, list[list[str]], Recording, int]]:
    """Name, the names that are right (one of each list), the recording, and its frames."""
    every = so101.faults() if args.world == "so101" else plant.faults()
    fit = {one.name: one for one in every if not one.needs or one.needs in needs}
    if args.drawn:
        yield from _of_actions(args, whole, [*fit.values()])
        return
    few = labels == "disturbed"
    for frames in args.frames[:1] if few else args.frames:
        recording = whole.only(frames)
        for one in fit.values():
            if args.only in one.name:
                right = [*one.wanted, *(() if "state" in needs else one.stateless)]
                yield one.name, [right], one.plant(recording), frames
        for names in PAIRS if frames >= 24 and not few else ():
            if set(names) <= set(fit) and args.only in " + ".join(names):
                first, second = (fit[name] for name in names)
                both = second.plant(first.plant(recording))
                yield " + ".join(names), [[*first.wanted], [*second.wanted]], both, frames
        for number in range(args.clean if args.only in ("", "clean") else 0):
            yield f"clean {number}", [[]], _drawn(whole, frames, number), frames


def _of_actions(
    args: argparse.Namespace, whole: Recording, fit: Sequence[Fault]
) -> Iterator[tuple[str, list[list[str]], Recording, int]]:
    """Drawn sets: clean ones, and of each fault that leaves images, state and instruction."""
    for frames in args.frames:
        for number in range(args.drawn):
            drawn = _drawn(whole, frames, number)
            yield f"clean {number}", [[]], drawn, frames
            for one in fit:
                planted = one.plant(drawn)
                seen = planted.images is drawn.images and planted.state is drawn.state
                if seen and planted.tasks is drawn.tasks and args.only in one.name:
                    yield f"{one.name} #{number}", [[*one.wanted]], planted, frames


def _drawn(whole: Recording, frames: int, number: int) -> Recording:
    """Another clean set: frames drawn of all."""
    rng = np.random.default_rng([5, number, frames])
    rows = sorted(rng.choice(whole.chosen, frames, replace=False).tolist())
    return replace(whole, chosen=tuple(rows))


def _check(policy: Policy, recording: Recording, free: bool) -> Diagnosis:
    """``free``: only with the repairs that ask the policy nothing."""
    info = policy.info
    hypotheses = all_of(recording, info.action_space, info.chunk_length, info.state_middle)
    hypotheses = [one for one in hypotheses if not free or one.inputs is None]
    return Search(RememberingAsker(policy, recording), hypotheses, 1e9).run()


class RememberingAsker(Asker):
    """An asker that keeps each answer of a policy by what the policy was shown: faults of the
    actions ask the same, and a fault repaired by another's repair is often a third one's."""

    answers: ClassVar[dict[tuple[int, bytes], Floats]] = {}

    def ask(
        self, inputs: Sequence[Inputs], rows: Sequence[int], instruction: str | None = None
    ) -> Floats:
        keys = {row: (id(self._policy), self._shown(inputs, row, instruction)) for row in rows}
        left = [row for row in dict.fromkeys(rows) if keys[row] not in self.answers]
        if left:
            found = super().ask(inputs, left, instruction)
            self.answers.update({keys[row]: one for row, one in zip(left, found, strict=True)})
        return np.stack([self.answers[keys[row]] for row in rows])

    def _shown(self, inputs: Sequence[Inputs], row: int, instruction: str | None) -> bytes:
        text = self.recording.tasks[row] if instruction is None else instruction
        digest = blake2b(text.encode(), digest_size=16)
        for back in range(self._policy.info.observations):
            seen = self.observation(inputs, row, back)
            digest.update(str(seen.stamp_ns).encode())
            for array in (seen.image, seen.wrist_image, seen.proprio, *seen.more_images.values()):
                digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.digest()


def _outcome(found: Diagnosis) -> dict[str, Any]:
    named = [one.key for one in found.named.chain] if found.named else []
    after = found.named.error if found.named else found.before.error
    return {
        "named": " + ".join(named),
        "names": named,
        "ties": list(found.ties),
        "status": found.status,
        "before": round(found.before.error, 4),
        "after": round(after, 4),
        "margin": round(found.margin, 2),
        "calls": found.calls,
        "best": found.rivals[0].name if found.rivals else "",
    }


@cache
def _code(world: str) -> str:
    digest = blake2b(digest_size=6)
    for file in CODE[world]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _read(file: Path) -> list[dict[str, Any]]:
    """Results of the code as it is; others are left out."""
    if not file.exists():
        return []
    found = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [one for one in found if one["code"] == _code(one.get("world", "tabletop"))]


def _key(case: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(case[name] for name in ("checkpoint", "labels", "fault", "frames"))


# The table

VERDICTS = ("right", "tied", "half", "unseen", "missed", "wrong")


def judged(case: Mapping[str, Any]) -> str:
    """right, half (of two faults one), missed, wrong; tied: another repair is as good on these
    frames, and both are printed."""
    wanted = [set(names) for names in case["wanted"]]
    named = set(case["names"])
    if not any(wanted):
        return "wrong" if named else "right"
    strange = [name for name in named if not any(name in names for names in wanted)]
    if strange:
        ties = [set(tie.split(" + ")) for tie in case["ties"]]
        as_good = any(all(tie & names for names in wanted) for tie in ties)
        return "tied" if as_good else "wrong"
    return "right" if named and len(named) == len(wanted) else "missed" if not named else "half"


def unseen(cases: Sequence[Mapping[str, Any]]) -> set[tuple[Any, ...]]:
    """Cases of a fault that makes the policy's error less than twice what it is without one."""
    repaired: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for case in cases:
        if judged(case) == "right" and case["names"]:
            repaired[case["checkpoint"], case["labels"], case["frames"]].append(case["after"])
    usual = {key: float(np.median(found)) for key, found in repaired.items()}
    return {
        _key(case)
        for case in cases
        if any(case["wanted"])
        and case["before"]
        < 2 * usual.get((case["checkpoint"], case["labels"], case["frames"]), 0.0)
    }


def table(cases: Sequence[Mapping[str, Any]]) -> str:
    """All results in Markdown: a row a kind and size, then what was not named right."""
    hidden = unseen(cases)
    rows: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    seconds: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for case in cases:
        key = (case["checkpoint"], case["labels"], _kind(case), case["frames"])
        verdict = judged(case)
        rows[key].append("unseen" if verdict == "missed" and _key(case) in hidden else verdict)
        seconds[key].append(case["seconds"])
    out = [
        f"| checkpoint | labels | kind | frames | cases | {' | '.join(VERDICTS)} | CPU s |",
        f"|{'---|' * (6 + len(VERDICTS))}",
    ]
    for key, found in sorted(rows.items()):
        counts = [found.count(word) for word in VERDICTS]
        words = [str(word) for word in (*key, len(found), *counts)]
        out.append(f"| {' | '.join(words)} | {np.median(seconds[key]):.0f} |")
    out += ["", "Not named right:", ""]
    for case in cases:
        if (verdict := judged(case)) != "right":
            left = case["after"] if case["names"] else case["before"]
            out.append(
                f"- {case['checkpoint']}, {case['labels']}, {case['frames']} frames,"
                f" {case['fault']}: {verdict}, {case['named'] or 'nothing'}"
                f" (error {case['before']:.2f}, left {left:.2f}; best {case['best']})"
            )
    return "\n".join(out)


def _kind(case: Mapping[str, Any]) -> str:
    if case["fault"].startswith("clean "):
        return "clean sets"
    if "#" in case["fault"]:
        return f"drawn: {case['fault'].partition(' #')[0]}"
    if not any(case["wanted"]):
        return "none fits"
    return "two faults" if len(case["wanted"]) > 1 else "one fault"


if __name__ == "__main__":
    raise SystemExit(main())
