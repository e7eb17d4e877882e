"""Mistakes of a user's first hour: what is typed, and what the one line that refuses it must name.

Each ends before anything starts, in a folder that :func:`laid_out` makes. A word in front of the
command, NAME=VALUE, is a variable of its environment. ``None`` for the words: argparse's own line.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

#: 40 digits that no repository has
COMMIT = "31f090d05236101ebfc381b61c674dd4746d4ce0"
UNREACHED = "the hub cannot be reached: `hf download"
VLA = "vla-ros up policy -p policy.policy=vla"

#: what is typed -> words of the line
MISTAKES: dict[str, tuple[str, ...]] = {
    # verbs and flags
    "vla-ros": ("VERB",),
    "vla-ros recrod": ("did you mean 'record'?",),
    "vla-ros -p bridge.instruction=pick up sim": ("the verb comes first",),
    "vla-ros up": ("required: graph",),
    "vla-ros up sim --lits": ("there is no --lits", "'--list'"),
    "vla-ros up sim -p bridge.instruction=pick up it": ("spaces in quotes",),
    "vla-ros up sim --log-level verbose": ("'verbose'", "'debug'"),
    "vla-ros up sim --for -1": ("--for -1", "above 0"),
    "vla-ros up sim --namespace 1arm": ("--namespace 1arm", "arm_left"),
    "vla-ros export bag --out x": ("--lerobot",),
    "vla-ros serve shipped:tabletop --port http": ("--port", "'http'"),
    # graphs and robot files
    "vla-ros up smi": ("did you mean 'sim'?",),
    "vla-ros up nope.yaml": ("'nope.yaml'", "so101"),
    "vla-ros up empty": ("empty is a directory",),
    "vla-ros up note.txt": ("note.txt", "mapping of names"),
    "vla-ros up tab.yaml": ("tab.yaml, line 2", "not YAML"),
    "vla-ros up typo.yaml": ("typo.yaml, line 4", "'velocity_limits'"),
    "vla-ros up lengths.yaml": ("bounds_low and bounds_high need 2 values",),
    "vla-ros up policy --contract typo.yaml": ("typo.yaml, line 1", "no contract"),
    "vla-ros up policy --contract nope.yaml": ("cannot read nope.yaml",),
    "vla-ros setup --robot so100 --yes": ("did you mean 'so101'?",),
    "vla-ros contract nope.yaml": ("cannot read nope.yaml",),
    "ROS_DOMAIN_ID=300 vla-ros up sim": ("ROS_DOMAIN_ID is '300'", "0 to 232"),
    "ROS_DOMAIN_ID=abc vla-ros up sim": ("ROS_DOMAIN_ID is 'abc'", "0 to 232"),
    "RMW_IMPLEMENTATION=rmw_nobody_cpp vla-ros up sim": ("rmw_nobody_cpp", "unset it"),
    # parameters
    "vla-ros up sim -p polici.mode=lockstep": ("did you mean 'policy'?",),
    "vla-ros up sim -p policy.polcy=zero": ("did you mean 'policy'?",),
    "vla-ros up sim -p mode=lockstep": ("write NODE.PARAMETER=VALUE",),
    "vla-ros up sim -p policy.mode": ("write NODE.PARAMETER=VALUE",),
    "vla-ros up policy -p policy.mode=real_time": ("'real_time'", "realtime"),
    "vla-ros up policy -p policy.outputs=twist": ("a list such as [twist]",),
    "vla-ros up policy -p policy.outputs=[twits]": ("'twits'", "twist, trajectory"),
    "vla-ros up policy -p policy.control_rate_hz=2000": ("2000", "1 to 500"),
    "vla-ros up policy -p policy.max_age_s=fast": ("max_age_s", "a number such as"),
    "vla-ros up policy -p policy.max_age_s=0.06": ("max_age_s 0.06 cannot be met", "0.100"),
    "vla-ros up policy -p policy.mode=lockstep": ("use_sim_time:=true",),
    "vla-ros up policy -p policy.outputs=[positions]": ("needs action_space joint_position",),
    "vla-ros up policy -p policy.outputs=[twist]": ("limits of the robot's own",),
    "vla-ros up policy -r imgae=/camera": ("did you mean 'image'?",),
    "vla-ros up policy -r image=1bad": ("'1bad' is no topic",),
    "vla-ros up policy -r polici:image=/camera": ("did you mean 'policy'?",),
    "vla-ros up sim -p bridge.task=pick_red_cub": ("did you mean 'pick_red_cube'?",),
    "vla-ros up so101 -p bridge.task=lift_cub": ("did you mean 'lift_cube'?",),
    "vla-ros up sim -p bridge.initial_state=77": ("0 to 49",),
    "vla-ros record -p flight_second=1": ("did you mean 'flight_seconds'?",),
    # policies
    "vla-ros up policy -p policy.policy=scrpted": ("did you mean 'scripted'?",),
    "vla-ros up policy -p policy.policy=smolvla": ("a model", "policy: vla and checkpoint"),
    "vla-ros up policy -p policy.policy=act": ("a model", "policy: vla and checkpoint"),
    "vla-ros up policy -p policy.policy=pi0": ("a model", "policy: vla and checkpoint"),
    "vla-ros up policy -p policy.policy=openvla": ("a model", "policy: vla and checkpoint"),
    "vla-ros up policy -p policy.policy=remote": ("ws://host:8000",),
    VLA: ("needs a checkpoint",),
    f"{VLA} -p policy.dtype=bf16": ("'bf16'", "bfloat16"),
    f"{VLA} -p policy.decoding=specultive": ("'specultive'", "speculative"),
    f"{VLA} -p policy.checkpoint=shipped:tabletop -p policy.device=gpu": ("give cpu, cuda or",),
    f"{VLA} -p policy.checkpoint=shipped:tabletop -p policy.device=cuda": ("finds no GPU here",),
    # checkpoints
    f"{VLA} -p policy.checkpoint=/models/none": ("'/models/none'", "neither a directory nor"),
    f"{VLA} -p policy.checkpoint=models/mine": ("no folder 'models/mine'", "models/mine@main"),
    f"{VLA} -p policy.checkpoint=models/my_smolvl": ("did you mean 'models/my_smolvla'?",),
    f"{VLA} -p policy.checkpoint=tabletop": ("did you mean 'shipped:tabletop'?",),
    f"{VLA} -p policy.checkpoint=shipped:tabletp": ("did you mean 'shipped:tabletop'?",),
    f"{VLA} -p policy.checkpoint=lerobot/smolvla_base": (f"{UNREACHED} lerobot/smolvla_base",),
    f"{VLA} -p policy.checkpoint=openvla/openvla-7b@{COMMIT}": (f"{UNREACHED} openvla/openvla-7b",),
    f"{VLA} -p policy.checkpoint=empty": ("no config.json in empty",),
    f"{VLA} -p policy.checkpoint=broken": ("broken/config.json is no JSON",),
    f"{VLA} -p policy.checkpoint=models/my_smolvla": ("no model.safetensors",),
    f"{VLA} -p policy.checkpoint=note.txt": ("'note.txt' is a file",),
    "vla-ros doctor --checkpoint shipped:tabletpo": ("did you mean 'shipped:tabletop'?",),
    "vla-ros doctor --checkpoint lerobot/smolvla_base": (UNREACHED,),
    "vla-ros setup /no/such --yes": ("'/no/such'", "neither a directory nor"),
    "vla-ros lock smolvla_base": ("give owner/name",),
    # serving, the demo, evaluations
    "vla-ros serve models/mine": ("no folder 'models/mine'",),
    "vla-ros serve lerobot/smolvla_base": (UNREACHED,),
    "vla-ros serve shipped:tabletop --port PORT": ("PORT is taken", "0 for a free one"),
    "vla-ros serve shipped:tabletop --host 10.9.9.9": ("10.9.9.9", "$VLA_ROS_TOKEN"),
    "vla-ros demo --mode lockstp": ("did you mean 'lockstep'?",),
    "vla-ros demo --task pick_red_cub": ("did you mean 'pick_red_cube'?",),
    "vla-ros demo --policy vlaa": ("did you mean 'vla'?",),
    "vla-ros demo --decoding fast": ("decoding fast", "speculative"),
    "vla-ros demo --checkpoint models/mine": ("no folder 'models/mine'",),
    "vla-ros eval --tasks pick_red_cub --no-ros": ("did you mean 'pick_red_cube'?",),
    "vla-ros eval --env libreo": ("did you mean 'libero'?",),
    "vla-ros eval --no-ros --checkpoint /nope": ("'/nope'",),
    "vla-ros eval --no-ros --episodes 0": ("--episodes", "at least 1"),
    # data
    "vla-ros replay nope": ("there is no such bag",),
    "vla-ros replay empty": ("empty: no bag",),
    "vla-ros replay note.txt --mode lockstp": ("did you mean 'lockstep'?",),
    "vla-ros check models/mine empty": ("no folder 'models/mine'",),
    "vla-ros convert nope out": ("nope is no directory",),
    # the lab's verbs
    "vla-ros train --data nope --out x": ("--data nope: no such folder",),
    "vla-ros train --out x": ("give --data",),
    "vla-ros collect --out x --tasks pick_red_cub": ("did you mean 'pick_red_cube'?",),
    "vla-ros collect --out x --demos 0": ("--demos", "at least 1"),
    "vla-ros bench --preset openvla": ("did you mean 'openvla-7b'?",),
    "vla-ros roofline --model openvla": ("did you mean 'openvla-7b'?",),
    "vla-ros roofline --device h2000": ("did you mean 'h200'?",),
    "vla-ros loop nope": ("nope is no folder",),
    "vla-ros coverage nope": ("--keep-tokens",),
}  # fmt: skip


def laid_out(folder: Path) -> Path:
    """The files that the mistakes name."""
    config = {"type": "smolvla"}
    for name, text in {
        "empty/.keep": "",
        "models/my_smolvla/config.json": json.dumps(config),
        "broken/config.json": json.dumps(config)[:-1],
        "note.txt": "hello\n",
        "tab.yaml": "policy:\n\tros__parameters: {}\n",
        "typo.yaml": "/**/policy:\n  ros__parameters:\n    policy: zero\n"
        "    velocity_limit: [0.5]\n",
        "lengths.yaml": "/**/policy:\n  ros__parameters:\n    action_space: joint_position\n"
        "    joint_names: [a, b]\n    bounds_low: [-1.0]\n    bounds_high: [1.0]\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@dataclass(frozen=True, slots=True)
class Typed:
    """A line as a shell takes it: variables, and the words behind ``vla-ros``."""

    variables: dict[str, str]
    words: tuple[str, ...]


def typed(line: str, port: int) -> Typed:
    """The line with the taken ``port`` for PORT."""
    words = shlex.split(line.replace("PORT", str(port)))
    first = words.index("vla-ros")
    return Typed(dict(word.split("=", 1) for word in words[:first]), tuple(words[first + 1 :]))
