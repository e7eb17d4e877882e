"""The fields of other people's config.json, read out of the classes that write it.

    python -m support.config_fields SOURCES

SOURCES: a folder of Python files as it was unpacked from a release (a wheel of lerobot or
transformers, a clone of openvla or Isaac-GR00T). Nothing of it is imported or run: dataclass
fields and arguments of ``__init__`` are read from the text. Prints each class with its fields and
defaults as JSON, and which of the fields are in none of this engine's lists. With ``--store NAME``
they go into ``golden/config_fields.json`` under the release's NAME, which is what tests compare
where the classes are not installed.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from pathlib import Path

from vla_ros.engine.io import fields as lists
from vla_ros.engine.io.field_table import FieldTable

STORE = Path(__file__).resolve().parents[1] / "golden" / "config_fields.json"
#: Class -> the lists that must know its fields; several where a class is written by many models.
CLASSES: dict[str, tuple[FieldTable, ...]] = {
    "PreTrainedConfig": tuple(lists.LEROBOT.values()),
    "transformers.PreTrainedConfig": (
        *(lists.OPENVLA, lists.TEXT, lists.GROOT_N17, lists.GROOT_N16, lists.GROOT_N15),
    ),
    "PI0Config": (lists.PI0,),
    "PI05Config": (lists.PI05,),
    "SmolVLAConfig": (lists.SMOLVLA,),
    "PI0FastConfig": (lists.PI0_FAST,),
    "Evo1Config": (lists.EVO1,),
    "ACTConfig": (lists.ACT,),
    "PrismaticConfig": (lists.OPENVLA,),
    "OpenVLAConfig": (lists.OPENVLA,),
    "LlamaConfig": (lists.TEXT,),
    "Qwen2Config": (lists.TEXT,),
    "Gr00tN1d7Config": (lists.GROOT_N17,),
    "Gr00tN1d6Config": (lists.GROOT_N16,),
    "FlowmatchingActionHeadConfig": (lists.GROOT_N15_HEAD,),
    "TurboVLAConfig": (lists.TURBOVLA,),
    "TextEncoderConfig": (lists.TURBOVLA.rows["text"],),
    "VisionEncoderConfig": (lists.TURBOVLA.rows["vision"],),
    "InteractionConfig": (lists.TURBOVLA.rows["interaction"],),
    "ActionHeadConfig": (lists.TURBOVLA.rows["action"],),
}
#: Names that other people's classes have too: read where TurboVLA's own is in the same file.
COMMON = ("TextEncoderConfig", "VisionEncoderConfig", "InteractionConfig", "ActionHeadConfig")
Found = dict[str, dict[str, str]]


def read_classes(sources: Path) -> Found:
    """Class -> field -> the text of its default, of all of :data:`CLASSES` below a folder."""
    found: Found = {}
    for path in sorted(sources.rglob("*.py")):
        if "config" not in path.name and path.name not in (
            "policies.py",
            "flow_matching_action_head.py",
        ):
            continue
        classes = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ClassDef)
        ]
        turbovla = any(node.name == "TurboVLAConfig" for node in classes)
        for node in classes:
            if node.name in CLASSES and (turbovla or node.name not in COMMON):
                fields = _fields(node)
                of_transformers = "transformers_version" in fields  # LeRobot's has the same name
                name = "transformers." * of_transformers + node.name
                if name == "PI0Config" and "n_obs_steps" not in fields:
                    continue  # transformers' own pi0, whose folders LeRobot does not write
                found.setdefault(name, {}).update(fields)
    return found


def _fields(node: ast.ClassDef) -> dict[str, str]:
    named: dict[str, str] = {}
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            if "ClassVar" not in ast.unparse(one.annotation):
                named[one.target.id] = "" if one.value is None else ast.unparse(one.value)
        elif isinstance(one, ast.FunctionDef) and one.name == "__init__":
            named |= _arguments(one)
    return {name: default for name, default in named.items() if not name.startswith("_")}


def _arguments(init: ast.FunctionDef) -> dict[str, str]:
    given = init.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    pairs = [*zip(given.args, defaults, strict=True)]
    pairs += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return {a.arg: ast.unparse(d) if d else "" for a, d in pairs if a.arg != "self"}


def in_no_list(found: Found) -> list[str]:
    """The fields that this engine would refuse as unknown, "CLASS.FIELD"."""
    return [
        f"{name}.{field}"
        for name, fields in found.items()
        for field in fields
        if any(field not in known.known() for known in CLASSES[name])
    ]


def stored() -> dict[str, Found]:
    """Release -> class -> field -> default, as they were read."""
    return dict(json.loads(STORE.read_text(encoding="utf-8"))) if STORE.is_file() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--store", metavar="RELEASE")
    args = parser.parse_args()
    found = read_classes(args.sources)
    if args.store:
        everything = stored() | {args.store: found}
        STORE.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    else:
        print(json.dumps(found, indent=1))
    lost = in_no_list(found)
    print(f"{args.store or args.sources}: {len(found)} classes, in no list: {lost or 'none'}",
          file=sys.stderr)  # fmt: skip
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
