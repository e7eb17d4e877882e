"""Folders as they lie on the hub: other people's layouts, fields and omissions.

    python -m support.hub_folders        the table: each folder, and what comes of it

Weights are random and small. Those of LeRobot's are the golden ones, so that whatever the layout,
the actions must be those that LeRobot itself gave (``golden/flow``, ``golden/evo1``). A folder
either loads, as it is or after `vla-ros convert`, or is refused in one line that says what next.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from golden.act.cases import CASES as ACTS
from golden.act.cases import weight as act_weight
from golden.evo1.cases import weight as evo1_weight
from golden.flow.cases import CASES, PI_SHAPES
from golden.flow.seeded import weight
from support.config_fields import stored
from support.engine import tiny_config
from support.folders import CONFIG, WEIGHTS, Change, both, edit, tensors, without
from support.releases import adapter, oft_release, prismatic_run
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.convert import ConvertOptions, convert
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.groot import FAMILIES as GROOTS
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.families.registry import family_of, write_folder
from vla_ros.engine.families.turbovla import SMALL as TURBOVLA
from vla_ros.engine.io.files import text_in
from vla_ros.engine.io.flow_config import (
    steps_of,
)
from vla_ros.engine.models.evo1 import position_table
from vla_ros.engine.options import TOKENS

FLOW = Path(__file__).resolve().parents[1] / "golden" / "flow"
EVO1, ACT = FLOW.parent / "evo1", FLOW.parent / "act"
TOKENIZER = FLOW / "tokenizer"
BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
TEXT = "model.paligemma_with_expert.paligemma.model.language_model."
PLACE = Placement(torch.device("cpu"), torch.float32)
_CLASSES = {
    "pi0": "PI0Config", "pi05": "PI05Config", "smolvla": "SmolVLAConfig",
    "pi0_fast": "PI0FastConfig",
}  # fmt: skip


@dataclass(frozen=True)
class HubFolder:
    """``make`` writes it; ``golden`` names the case whose actions it must give, ``says`` what the
    line must say that refuses it. ``converted``: `vla-ros convert` comes first, with ``base``."""

    make: Change
    golden: str = ""
    says: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    converted: bool = False
    base: Change | None = None


def set_fields(**fields: Any) -> Change:
    return edit(CONFIG, lambda raw: raw.update(fields))


def lerobots(name: str) -> Change:
    """A folder that LeRobot 0.6.1 saved, with its weights drawn again."""

    def write(folder: Path) -> None:
        shutil.copytree(FLOW / name, folder)
        gemma = CASES[name].kind != "smolvla"
        drawn = {
            saved: torch.from_numpy(weight(of, tuple(shape), gemma).copy())
            for saved, of, shape in json.loads((folder / "tensors.json").read_text())
        }
        save_file(drawn, str(folder / WEIGHTS))
        if gemma:  # LeRobot has the published sizes in its code
            set_fields(shapes=PI_SHAPES)(folder)
        (folder / "tensors.json").unlink()
        (folder / "golden.npz").unlink()
        shutil.copytree(TOKENIZER, folder, dirs_exist_ok=True)
        for more in ("train_config.json", "README.md", ".gitattributes"):
            (folder / more).write_text("{}")

    return write


def fasts(folder: Path) -> None:
    """The pi0-FAST that LeRobot 0.6.1 trained and saved, and the FAST tokenizer beside it."""
    with tarfile.open(FLOW.parent / "data" / "pi0fast.tar.xz") as archive:
        archive.extractall(folder.parent, filter="data")
    (folder.parent / "pi0fast").rename(folder)
    (folder / "expected.npz").unlink()


def made_by_lerobot(kind: str) -> Change:
    return fasts if kind == "pi0_fast" else lerobots(kind)


def evo1s(name: str) -> Change:
    def write(folder: Path) -> None:
        shutil.copytree(EVO1 / name, folder)
        shutil.copy(EVO1 / "tokenizer.json", folder)
        found = {}
        for saved, shape in json.loads((folder / "tensors.json").read_text()):
            values = evo1_weight(saved, tuple(shape))
            if saved.endswith(".pe"):
                values = position_table(shape[1], shape[2])[None].numpy()
            found[saved] = torch.from_numpy(values.copy())
        save_file(found, str(folder / WEIGHTS))

    return write


def acts(name: str) -> Change:
    def write(folder: Path) -> None:
        shutil.copytree(ACT / name, folder)
        drawn = {
            saved: torch.from_numpy(act_weight(saved, tuple(shape)).copy())
            for saved, shape in json.loads((folder / "tensors.json").read_text())
        }
        save_file(drawn, str(folder / WEIGHTS))

    return write


def groots(name: str) -> Change:
    family = next(f for f in GROOTS if name in f.presets)

    def write(folder: Path) -> None:
        folder.mkdir()
        family.write(folder, family.presets[name], 1)

    return write


def token_policy(folder: Path) -> None:
    write_random(folder, tiny_config(towers="fused"), seed=1)


def fields_of(release: str, kind: str) -> Change:
    """Every field with a plain default that this release writes."""
    import ast

    found = stored()[release]
    raw: dict[str, Any] = {}
    for name, text in (found["PreTrainedConfig"] | found[_CLASSES[kind]]).items():
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            continue
        raw[name] = list(value) if isinstance(value, tuple) else value
    return edit(CONFIG, lambda content: content.update({**raw, **content}))


def renumbered(before: int, after: int) -> Change:
    """The statistics under other numbers of their steps."""

    def apply(folder: Path) -> None:
        for name, number in ((BEFORE, before), (AFTER, after)):
            raw = json.loads((folder / name).read_text())
            for step in raw["steps"]:
                if old := step.get("state_file"):
                    new = re.sub(r"_step_\d+_", f"_step_{number}_", old)
                    (folder / old).rename(folder / new)
                    step["state_file"] = new
            (folder / name).write_text(json.dumps(raw))

    return apply


def device_first(folder: Path) -> None:
    """As LeRobot's own migration wrote it: the postprocessor begins with the device."""
    edit(AFTER, lambda raw: raw["steps"].reverse())(folder)


def statistics(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def apply(folder: Path) -> None:
        for path in folder.glob("policy_*normalizer_processor.safetensors"):
            tensors(change, path.name)(folder)

    return apply


def by_data_set(buffer: str = "buffer.", without_state: bool = False) -> Change:
    """As lerobot/smolvla_base has them."""

    def change(found: dict[str, torch.Tensor]) -> None:
        own = {n: found.pop(n) for n in list(found) if n.startswith(("action.", "observation."))}
        for name, tensor in own.items():
            for key, shift in (("so100", 0.0), ("so100-blue", 1.0), ("so100-red", 2.0)):
                if not (without_state and name.startswith("observation")):
                    found[f"{key}.{buffer}{name}"] = tensor + shift

    return statistics(change)


def of_before(key: str = "", compiled: bool = False) -> Change:
    """As LeRobot 0.3 saved it: no processor files, statistics among the weights."""

    def apply(folder: Path) -> None:
        raw = json.loads((folder / CONFIG).read_text())
        states = steps_of(folder / BEFORE)["normalizer_processor"].raw["state_file"]
        found = load_file(folder / WEIGHTS)
        if compiled:
            found = {n.replace("model.", "model._orig_mod.", 1): t for n, t in found.items()}
        prefix = f"{key}_" if key else ""
        for name, tensor in load_file(folder / states).items():
            feature, _, what = name.rpartition(".")
            if what not in ("mean", "std", "min", "max"):
                continue
            inner = f"{prefix}buffer_{feature.replace('.', '_')}.{what}"
            if feature == "observation.state":
                found[f"normalize_inputs.{inner}"] = tensor
            elif feature == "action":
                found[f"normalize_targets.{inner}"] = tensor
                found[f"unnormalize_outputs.{inner}"] = tensor.clone()
        save_file({n: t.contiguous().clone() for n, t in found.items()}, str(folder / WEIGHTS))
        for path in folder.glob("policy_*"):
            path.unlink()
        if raw["type"] == "pi0":  # in its words
            raw["num_steps"] = raw.pop("num_inference_steps")
            raw["resize_imgs_with_padding"] = raw.pop("image_resolution")
            (folder / CONFIG).write_text(json.dumps(raw))

    return apply


def adapted(rank: int = 2, alpha: float = 4.0, rslora: bool = False, whole: bool = False) -> Change:
    """As LeRobot saves what peft trained: the difference to the base that :func:`base_of` has."""

    def apply(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        made: dict[str, torch.Tensor] = {}
        for name in _targets(found):
            a, b = _factors(name, found[name].shape, rank)
            made[f"base_model.model.{name.removesuffix('weight')}lora_A.weight"] = a
            made[f"base_model.model.{name.removesuffix('weight')}lora_B.weight"] = b
        if whole:
            made |= {f"base_model.model.{n}": found[n] for n in found if "action_in_proj" in n}
        save_file(made, str(folder / "adapter_model.safetensors"))
        (folder / WEIGHTS).unlink()
        said = {
            "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": rslora,
            "bias": "none", "base_model_name_or_path": "lerobot/base",
            "target_modules": "q_proj", "modules_to_save": ["action_in_proj"] if whole else [],
        }  # fmt: skip
        (folder / "adapter_config.json").write_text(json.dumps(said))
        set_fields(use_peft=True)(folder)

    return apply


def base_of(rank: int = 2, scale: float = 2.0, whole: bool = False) -> Change:
    """The weights that :func:`adapted` is added to."""

    def change(found: dict[str, torch.Tensor]) -> None:
        for name in _targets(found):
            a, b = _factors(name, found[name].shape, rank)
            found[name] = found[name] - scale * (b @ a)
        for name in [n for n in found if whole and "action_in_proj" in n]:
            found[name] = torch.zeros_like(found[name])

    return tensors(change)


def _targets(found: dict[str, torch.Tensor]) -> list[str]:
    return [n for n in found if "expert" in n and n.endswith(("q_proj.weight", "v_proj.weight"))]


def _factors(name: str, shape: torch.Size, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(len(name))
    a, b = (torch.randn(*s, generator=generator) for s in ((rank, shape[1]), (shape[0], rank)))
    return a / 10, b / 10


def rename(**names: str) -> Change:
    """The data set's cameras became these of the policy's."""

    def cameras(raw: dict[str, Any]) -> None:
        inputs = raw["input_features"]
        raw["input_features"] = {
            f"observation.images.{names[k.removeprefix('observation.images.')]}"
            if k.removeprefix("observation.images.") in names else k: v
            for k, v in inputs.items()
        }  # fmt: skip

    renamed = {f"observation.images.{a}": f"observation.images.{b}" for a, b in names.items()}
    steps = edit(BEFORE, lambda raw: raw["steps"][0]["config"].update(rename_map=renamed))
    return both(edit(CONFIG, cameras), steps)


def step(name: str, file: str = BEFORE) -> Change:
    return edit(file, lambda raw: raw["steps"].append({"registry_name": name, "config": {}}))


def renamed_step(now: str, then: str) -> Change:
    def change(raw: dict[str, Any]) -> None:
        (it,) = [s for s in raw["steps"] if s["registry_name"] == now]
        it["registry_name"] = then

    return edit(BEFORE, change)


def inside(*names: str) -> Change:
    """The folder is only the one above: the checkpoints lie in ``names``."""

    def apply(folder: Path) -> None:
        scratch = folder.with_name("moved")
        folder.rename(scratch)
        for name in names:
            shutil.copytree(scratch, folder / name)
        shutil.rmtree(scratch)

    return apply


def into_processor(folder: Path) -> None:
    (folder / "processor").mkdir()
    for name in ("processor_config.json", "statistics.json", "embodiment_id.json"):
        if (folder / name).exists():
            (folder / name).rename(folder / "processor" / name)


def by_transformers_4(found: dict[str, torch.Tensor]) -> None:
    for name in [n for n in found if ".vision_tower." in n and "vision_model" not in n]:
        longer = name.replace(".vision_tower.", ".vision_tower.vision_model.")
        found[longer] = found.pop(name)


def pickled(folder: Path) -> None:
    without(WEIGHTS)(folder)
    (folder / "pytorch_model.bin").write_bytes(b"x")


def padded_tokenizer(folder: Path) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["padding"] = {
            "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>",
        }  # fmt: skip
        raw["truncation"] = {
            "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
        }  # fmt: skip

    edit("tokenizer.json", change)(folder)


def words_apart(folder: Path) -> None:
    (folder / "tokenizer").mkdir()
    for path in folder.glob("tokenizer*.json"):
        path.rename(folder / "tokenizer" / path.name)


def somebodys(raw: dict[str, Any], *names: str) -> Change:
    """A folder of another family: config.json and files of these names."""

    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / CONFIG).write_text(json.dumps(raw))
        for name in names:
            (folder / name).write_bytes(b"x")

    return write


def lerobots_other(kind: str) -> Change:
    features = {"observation.images.front": {"type": "VISUAL", "shape": [3, 48, 64]}}
    raw = {"type": kind, "input_features": features,
           "output_features": {"action": {"type": "ACTION", "shape": [7]}}}  # fmt: skip
    return somebodys(raw, WEIGHTS, BEFORE, AFTER)


def _folders() -> dict[str, HubFolder]:
    all_: dict[str, HubFolder] = {}
    for name in CASES:
        all_[f"{name} as LeRobot 0.6.1 saves it"] = HubFolder(lerobots(name), name)
    for name in ("plain", "absent", "many"):
        all_[f"evo1, {name}"] = HubFolder(evo1s(name), f"evo1/{name}")
    for name in ACTS:  # whose actions are compared in test_act_golden.py
        all_[f"act, {name}"] = HubFolder(acts(name), "random")
    for release in [r for r in stored() if r.startswith("lerobot") and "0.3" not in r]:
        for kind in _CLASSES:
            all_[f"{kind} with every field of {release}"] = HubFolder(
                both(made_by_lerobot(kind), fields_of(release, kind)), kind
            )
    all_["pi0_fast as LeRobot 0.6.1 saves it"] = HubFolder(fasts, "pi0_fast")
    all_["pi0_fast whose head is its embedding, as LeRobot 0.4 saves it"] = HubFolder(
        both(fasts, tensors(lambda t: t.pop(f"{TEXT}embed_tokens.weight"))),
        "random",
    )
    for kind, numbers in (("pi0", (5, 1)), ("pi05", (2, 0)), ("smolvla", (3, 2))):
        all_[f"{kind} whose statistics are those of steps {numbers}"] = HubFolder(
            both(lerobots(kind), renumbered(*numbers)), kind
        )
    for kind in ("pi0", "pi0_relative", "pi05"):
        all_[f"{kind} by LeRobot 0.5's name of a step"] = HubFolder(
            both(
                lerobots(kind),
                renamed_step("relative_actions_processor", "delta_actions_processor"),
            ),
            kind,
        )
    vision4 = tensors(by_transformers_4)
    bare = tensors(lambda t: [t.update({n.removeprefix("model."): t.pop(n)}) for n in list(t)])
    smol, pi0, pi05 = lerobots("smolvla"), lerobots("pi0"), lerobots("pi05")
    chosen = {"unnorm_key": "so100"}
    loads = {
        "smolvla migrated, device before statistics": (both(smol, device_first), "smolvla", {}),
        "pi0 by the names of transformers 4": (both(pi0, vision4), "pi0", {}),
        "pi05 by the names of transformers 4": (both(pi05, vision4), "pi05", {}),
        "pi0 as openpi names it": (both(pi0, bare), "pi0", {}),
        "pi05 as openpi names it": (both(pi05, bare), "pi05", {}),
        "smolvla, statistics by data set": (both(smol, by_data_set()), "smolvla", chosen),
        "smolvla, the same without the word buffer": (
            both(smol, by_data_set("")), "smolvla", chosen,
        ),
        "pi0, statistics by data set": (both(pi0, by_data_set()), "pi0", chosen),
        "smolvla, wrist and front renamed": (
            both(smol, rename(front="camera1", wrist="camera2")), "smolvla", {},
        ),
        "smolvla with padding stored in its tokenizer": (
            both(smol, padded_tokenizer), "smolvla", {},
        ),
        "smolvla, tokenizer in a folder": (both(smol, words_apart), "smolvla", {}),
        "pi05 trained for delays": (both(pi05, set_fields(rtc_training_max_delay=4)), "pi05", {}),
        "pi05 in bfloat16 by its config": (both(pi05, set_fields(dtype="bfloat16")), "pi05", {}),
        "pi05 that says its actions are absolute": (
            both(pi05, set_fields(use_relative_actions=False)), "pi05", {},
        ),
        "smolvla with rtc_config stored": (
            both(smol, set_fields(rtc_config={"execution_horizon": 10})), "smolvla", {},
        ),
    }  # fmt: skip
    all_ |= {name: HubFolder(make, case, options=o) for name, (make, case, o) in loads.items()}
    all_["smolvla_base: statistics by data set, none of the state"] = HubFolder(
        both(smol, by_data_set(without_state=True)),
        "no state",
        options={"unnorm_key": "so100", "state_normalization": "identity"},
    )
    for name in ("groot-n1.7-small", "groot-n1.6-small", "groot-n1.5-small"):
        all_[name] = HubFolder(groots(name), "random")
    for name in ("groot-n1.7-small", "groot-n1.6-small"):
        all_[f"{name}, three files in processor/"] = HubFolder(
            both(groots(name), into_processor), "random"
        )
    all_["openvla"] = HubFolder(token_policy, "random")
    all_["openvla with padding stored in its tokenizer"] = HubFolder(
        both(token_policy, padded_tokenizer), "random"
    )
    for kind, key in (("smolvla", ""), ("pi0", ""), ("smolvla", "so100")):
        all_[f"{kind} of LeRobot 0.3{f', of {key}' * bool(key)}"] = HubFolder(
            both(lerobots(kind), of_before(key)), kind, converted=True,
            options={"unnorm_key": key} if key else {},
        )  # fmt: skip
    all_["smolvla of LeRobot 0.3, compiled"] = HubFolder(
        both(smol, of_before(compiled=True)), "smolvla", converted=True
    )
    for kind in _CLASSES:
        all_[f"{kind}, an adapter of peft"] = HubFolder(
            both(made_by_lerobot(kind), adapted()), kind, converted=True,
            base=both(made_by_lerobot(kind), base_of()),
        )  # fmt: skip
    all_["smolvla, an adapter with rslora"] = HubFolder(
        both(smol, adapted(4, 4.0, rslora=True)), "smolvla", converted=True,
        base=both(smol, base_of(4, 2.0)),
    )  # fmt: skip
    all_["pi05, an adapter with whole layers"] = HubFolder(
        both(pi05, adapted(whole=True)), "pi05", converted=True,
        base=both(pi05, base_of(whole=True)),
    )  # fmt: skip
    all_["TurboVLA of its authors"] = HubFolder(turbovlas, "random", converted=True)
    return all_ | _refused()


def turbovlas(folder: Path) -> None:
    """A checkpoint as TurboVLA's authors save it, whose heads have the published width."""
    written, small = folder.with_name("written"), TURBOVLA
    config = replace(
        small,
        vision=replace(small.vision, width=64, heads=1),
        text=replace(small.text, width=64, heads=1),
    )
    write_folder(written, config, 1)
    raw = json.loads((written / CONFIG).read_text())
    raw.pop("shapes")
    folder.mkdir()
    content = {"model_state_dict": load_file(written / WEIGHTS), "model_config": raw}
    torch.save(content, folder / "turbovla_libero.pth")
    shutil.copy(written / "dataset_statistics.json", folder / "libero_all4_stats.json")
    shutil.copy(written / "tokenizer.json", folder)


def _refused() -> dict[str, HubFolder]:
    smol, pi0, pi05 = lerobots("smolvla"), lerobots("pi0"), lerobots("pi05")
    keyed, no_state = by_data_set(), by_data_set(without_state=True)
    no_files = without("policy_*.safetensors")
    bare_steps = [
        edit(name, lambda raw: [s.pop("state_file", None) for s in raw["steps"]])
        for name in (BEFORE, AFTER)
    ]
    identity = {"state_normalization": "identity"}
    made: dict[str, tuple[Change, str, dict[str, Any]]] = {
        "pi05 with visual memory": (
            both(pi05, set_fields(use_visual_memory=True)),
            "use_visual_memory is True.*vla-ros lerobot setup", {},
        ),
        "pi05 with proprioceptive memory": (
            both(pi05, set_fields(use_proprioceptive_memory=True)), "use_proprioceptive_memory", {},
        ),
        "smolvla of two frames": (both(smol, set_fields(n_obs_steps=2)), "n_obs_steps is 2", {}),
        "pi0 for an Aloha of openpi's": (
            both(pi0, set_fields(adapt_to_pi_aloha=True)), "adapt_to_pi_aloha is True", {},
        ),
        "pi0 of somebody's fork": (
            both(pi0, set_fields(use_tactile_tokens=True)), "unknown fields use_tactile_tokens", {},
        ),
        "pi05 whose config and processors disagree": (
            both(pi05, set_fields(use_relative_actions=True)), "use_relative_actions True", {},
        ),
        "smolvla, statistics by data set, none chosen": (
            both(smol, keyed), "unnorm_key is needed.*so100, so100-blue, so100-red", {},
        ),
        "smolvla, statistics by data set, another chosen": (
            both(smol, keyed), "unnorm_key 'bridge' is unknown.*has: so100",
            {"unnorm_key": "bridge"},
        ),
        "smolvla of one data set, a choice made": (
            smol, "unnorm_key 'so100' means nothing", {"unnorm_key": "so100"},
        ),
        "smolvla_base without a word about the state": (
            both(smol, no_state), "no statistics of the state.*state_normalization identity",
            {"unnorm_key": "so100"},
        ),
        "smolvla with statistics of the state, identity chosen": (
            smol, "state_normalization identity means nothing", identity,
        ),
        "smolvla that leaves its state as it comes": (
            both(smol, edit(BEFORE, lambda raw: raw["steps"][-1]["config"].update(
                normalize_observation_keys=["observation.images.front"]))),
            "normalize_observation_keys is .*wanted observation.state among them", {},
        ),
        "smolvla of LeRobot 0.3, as it is": (both(smol, of_before()), "vla-ros convert", {}),
        "pi0 of LeRobot 0.3, as it is": (both(pi0, of_before()), "vla-ros convert", {}),
        "an adapter of peft, as it is": (
            both(pi05, adapted()),
            r"adapter of peft.*lerobot/base.*vla-ros convert .* --base BASE", {},
        ),
        "pi05 converted from openpi, no statistics": (
            both(pi05, no_files, *bare_steps), "no statistics of its actions.*copy", {},
        ),
        "smolvla whose statistics were not downloaded": (
            both(smol, no_files), "statistics .* cannot be read", {},
        ),
        "a run of LeRobot's": (
            both(smol, inside("005000/pretrained_model", "checkpoints/010000/pretrained_model")),
            "above.*, checkpoints/010000/pretrained_model, 005000/pretrained_model$", {},
        ),
        "N1.7-LIBERO: a folder a suite": (
            both(groots("groot-n1.7-small"), inside("libero_spatial", "libero_goal")),
            "folder above checkpoints.*libero_spatial, libero_goal", {},
        ),
        "two cameras renamed to one": (
            both(smol, edit(BEFORE, lambda raw: raw["steps"][0]["config"].update(rename_map={
                "observation.images.a": "observation.images.front",
                "observation.images.b": "observation.images.front"}))),
            "rename_map makes observation.images.front of two", {},
        ),
        "an OpenVLA adapter": (adapter_folder, "LoRA adapter.*vla-ros convert .* --base BASE", {}),
        "an OpenVLA-OFT release": (oft_folder, "OpenVLA-OFT release.*vla-ros convert", {}),
        "a run of prismatic": (prismatic_folder, "run of prismatic.*vla-ros convert", {}),
        "openvla in pickles": (
            both(token_policy, pickled),
            "a pickle.*vla-ros convert", {},
        ),
        "weights for llama.cpp": (somebodys({}, "model.gguf"), "llama.cpp: give the original", {}),
        "Evo-1 of its authors": (
            somebodys({}, "mp_rank_00_model_states.pt"), "train the policy with LeRobot", {},
        ),
        "TurboVLA of its authors, as it is": (
            turbovlas, "turbovla_libero.pth, a pickle.*vla-ros convert", {},
        ),
        "TurboVLA of LeRobot's plug-in": (
            lerobots_other("turbovla"), "policy of lerobot, of type 'turbovla'", {},
        ),
        "MolmoAct2 of transformers": (
            somebodys({"model_type": "molmoact2"}, WEIGHTS, "norm_stats.json"),
            "model_type 'molmoact2'", {},
        ),
        "X-VLA of its authors": (
            somebodys({"model_type": "xvla"}, WEIGHTS), "model_type 'xvla'", {},
        ),
        "a language model": (
            somebodys({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, WEIGHTS),
            "language model.*give a checkpoint", {},
        ),
    }  # fmt: skip
    for name, of in (("action_tokenizer_processor", pi0), ("molmoact2_masked_normalizer", pi05),
                     ("xvla_image_scale", smol), ("render_messages_processor", pi05)):  # fmt: skip
        made[f"a step {name}"] = (
            both(of, step(name)),
            f"not built: {name}.*vla-ros lerobot setup",
            {},
        )
    made["pi0_fast without its FAST tokenizer"] = (
        both(fasts, lambda folder: shutil.rmtree(folder / "fast-action-tokenizer")),
        "no FAST tokenizer.*hf download lerobot/fast-action-tokenizer", {},
    )  # fmt: skip
    made["pi0_fast that draws its tokens"] = (
        both(fasts, set_fields(temperature=0.7)), r"temperature is 0\.7.*policy: lerobot", {},
    )  # fmt: skip
    for kind in ("diffusion", "xvla", "molmoact2", "wall_x", "vla_jepa", "eo1"):
        made[f"LeRobot's {kind}"] = (
            lerobots_other(kind), f"of type '{kind}'.*policy: lerobot.*vla-ros lerobot setup", {},
        )  # fmt: skip
    return {name: HubFolder(m, says=says, options=o) for name, (m, says, o) in made.items()}


def adapter_folder(folder: Path) -> None:
    base = folder.with_name("base")
    token_policy(base)
    adapter(folder, base)


def oft_folder(folder: Path) -> None:
    oft_release(folder)


def prismatic_folder(folder: Path) -> None:
    prismatic_run(folder)


FOLDERS = _folders()


def ready(name: str, where: Path) -> Path:
    """The folder ``name`` in ``where``, converted where that belongs to it."""
    it = FOLDERS[name]
    folder = where / "folder"
    it.make(folder)
    if not it.converted:
        return folder
    base = where / "base" if it.base else None
    if it.base is not None and base is not None:
        it.base(base)
    convert(folder, where / "converted", ConvertOptions(base=base))
    return where / "converted"


def load(name: str, where: Path) -> Any:
    """The policy of a folder, or CheckpointError: token policies as an engine."""
    folder, options = ready(name, where), dict(FOLDERS[name].options)
    if text_in(folder / "config.json", "type") in (
        "pi05",
        "pi0_fast",
    ):  # no folder says it; the golden ones are of LeRobot 0.6
        options["state_in_prompt"] = "robot"
    if family_of(folder).group != TOKENS:
        return family_of(folder).load(folder, LoadOptions(**options), PLACE)
    return load_engine(EngineOptions(str(folder), **options))


def main() -> None:
    for number, (name, it) in enumerate(FOLDERS.items(), 1):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                load(name, Path(scratch))
                what = f"loads{' after vla-ros convert' * it.converted}"
                if it.golden not in ("random", "no state"):
                    what += ", LeRobot's own actions"
            except CheckpointError as error:
                what = str(error).replace(f"{scratch}/", "")
            print(f"| {number} | {name} | {what} |", flush=True)


if __name__ == "__main__":
    np.random.default_rng(0)
    main()
