"""What a LeRobot folder may name: LeRobot's own policies and processor steps, files beside it, and
nothing that runs.

LeRobot imports and calls whatever class a processor file names, and its tokenizers may bring code
along. So the folder is read here first, before LeRobot sees it, and while LeRobot loads it an audit
hook refuses code that lies in the folder or was fetched from the hub. Names are those of LeRobot
0.6.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from vla_ros.core.files import BadFile, read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.tokenizer_file import checked
from vla_ros.policies.base import PolicyRefused
from vla_ros.policies.lerobot.checkpoint import CONFIG, POSTPROCESSOR, PREPROCESSOR

KINDS = frozenset({
    "act", "diffusion", "eo1", "evo1", "fastwam", "gaussian_actor", "groot", "lingbot_va",
    "molmoact2", "multi_task_dit", "pi0", "pi05", "pi0_fast", "smolvla", "tdmpc", "vla_jepa",
    "vqbet", "wall_x", "xvla",
})  # fmt: skip
#: Steps between an observation and a policy, and between a policy and an action. Not those that
#: read a gamepad, a phone or a reward model.
STEPS = frozenset({
    "absolute_actions_processor", "device_processor", "eo1_conversation_template_processor",
    "eo1_qwen_processor", "evo1_action_processor", "evo1_pad_action_processor",
    "evo1_pad_state_processor", "fastwam_action_toggle_processor",
    "groot_action_unpack_unnormalize_v2", "groot_n1_7_action_decode_v1",
    "groot_n1_7_pack_inputs_v1", "groot_n1_7_vlm_encode_v1", "image_crop_resize_processor",
    "libero_processor", "molmoact2_action_frame_transform", "molmoact2_clamp_action",
    "molmoact2_clamp_normalized", "molmoact2_masked_normalizer", "molmoact2_masked_unnormalizer",
    "molmoact2_pack_inputs", "molmoact2_state_frame_transform", "normalizer_processor",
    "observation_processor", "pi05_prepare_state_tokenizer_processor_step",
    "pi0_fast_prepare_state_tokenizer_processor_step", "pi0_new_line_processor",
    "policy_action_to_robot_action_processor", "relative_actions_processor",
    "rename_observations_processor", "robot_action_to_policy_action_processor",
    "smolvla_new_line_processor", "to_batch_processor", "to_batch_processor_action",
    "to_batch_processor_complementary_data", "to_batch_processor_observation",
    "tokenizer_processor", "torch2numpy_action_processor", "numpy2torch_action_processor",
    "unnormalizer_processor", "vla_jepa_binarize_gripper", "vla_jepa_clip_actions",
    "vla_jepa_pre_snap_gripper", "wall_x_task_processor", "xvla_add_domain_id",
    "xvla_image_scale", "xvla_image_to_float", "xvla_imagenet_normalize",
    "xvla_rotation_6d_to_axis_angle",
})  # fmt: skip
#: Steps of LeRobot's that bring code of others along, and what runs the policy instead.
_INSTEAD = {"action_tokenizer_processor": "FAST's tokenizer is code: `policy: vla` has its own"}
_MOST_TOKENIZERS = 20  # in a folder, those of its parts included
_FIELDS = frozenset({"registry_name", "config", "state_file"})
#: Fields that name a folder or a repository that LeRobot opens.
_OPENED = ("tokenizer", "processor", "encoder", "backbone", "vlm", "qwen", "pretrained_name",
           "base_model", "checkpoint_path", "wan_pretrained")  # fmt: skip
_TRUSTING = "trust_remote_code"


def check_folder(directory: Path) -> None:
    """Refuse a folder that names code, or files elsewhere. PolicyRefused: one line, with the file
    and the name."""
    config = _read(directory / CONFIG)
    kind = config.get("type")
    if kind not in KINDS:
        raise PolicyRefused(
            f"{directory / CONFIG}: type {kind!r} is no policy of LeRobot's own (plug-ins are not"
            " loaded): run it as a policy of an installed package"
        )
    _check_values(directory, CONFIG, config)
    _check_tokenizers(directory)
    for name in (PREPROCESSOR, POSTPROCESSOR):
        content = _read(directory / name)
        steps = content.get("steps", [])
        if not isinstance(steps, list):
            raise PolicyRefused(f"{directory / name}: steps is no list")
        for number, step in enumerate(steps):
            _check_step(directory, f"{name}, step {number}", step)


def _check_tokenizers(directory: Path) -> None:
    """Refuse tokenizers that end a process or fill its memory: transformers gives them to the
    library as they are."""
    try:
        for path in islice(directory.rglob("tokenizer.json"), _MOST_TOKENIZERS):
            checked(path)
    except CheckpointError as error:
        raise PolicyRefused(str(error)) from error


def _check_step(directory: Path, place: str, step: Any) -> None:
    if not isinstance(step, dict):
        raise PolicyRefused(f"{directory}/{place} is no mapping")
    name = step.get("registry_name")
    if "class" in step or name is None:
        raise PolicyRefused(
            f"{directory}/{place} names the class {step.get('class')!r}: only steps of LeRobot's"
            " registry are made, since a class named by a file is code of whoever wrote it"
        )
    if not isinstance(name, str) or name not in STEPS:
        hint = _INSTEAD.get(str(name), "it is none of LeRobot 0.6's steps between image and action")
        raise PolicyRefused(f"{directory}/{place} is {name!r}: {hint}")
    if strange := sorted(map(str, set(step) - _FIELDS)):
        raise PolicyRefused(f"{directory}/{place} has {', '.join(strange)}: not LeRobot's")
    state = step.get("state_file")
    if state is not None and not _beside(state, ".safetensors"):
        raise PolicyRefused(f"{directory}/{place}: state_file {state!r} is no file beside it")
    config = step.get("config") or {}
    if not isinstance(config, dict):
        raise PolicyRefused(f"{directory}/{place}: config is no mapping")
    _check_values(directory, place, config)


def _beside(name: Any, suffix: str) -> bool:
    return isinstance(name, str) and PurePosixPath(name).name == name and name.endswith(suffix)


def _check_values(directory: Path, place: str, values: Mapping[str, Any]) -> None:
    """Refuse trust in remote code, and folders outside of this one."""
    for field, value in _leaves(values):
        if _TRUSTING in field and value not in (False, None):
            raise PolicyRefused(f"{directory}/{place}: {field} is {value!r}: no code is fetched")
        opened = isinstance(value, str) and any(part in field.lower() for part in _OPENED)
        if opened and not _inside(directory, value):
            raise PolicyRefused(
                f"{directory}/{place}: {field} is {value!r}, outside of the folder: put it inside,"
                " or name a repository"
            )


def _inside(directory: Path, text: str) -> bool:
    """True of a repository's id, or of a path that stays within the folder."""
    path = Path(text)
    if text.startswith("~") or "\0" in text:
        return False
    if not path.is_absolute() and ".." not in path.parts:
        return True
    return (directory / path).resolve().is_relative_to(directory.resolve())


def _leaves(values: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of a tree, parents first."""
    if isinstance(values, dict):
        for name, value in values.items():
            yield from _leaves(value, f"{field}.{name}" if field else str(name))
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from _leaves(value, f"{field}[{number}]")
    else:
        yield field, values


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, BadFile) as error:
        raise PolicyRefused(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise PolicyRefused(f"{path} is no mapping")
    return content


#: What no loading of a checkpoint does: a program, or an object by its name out of a pickle.
_NEVER = ("os.system", "os.exec", "os.posix_spawn", "pty.spawn", "pickle.find_class")


class CodeWatch:
    """Audit hook of this process, which cannot be taken back: from now on no Python file and no
    library below the folder or in the hub's caches is run, and while it is ``loading`` no program.

    Use it as a context manager around the loading. PolicyRefused comes out of what tried.
    """

    def __init__(self, directory: Path) -> None:
        base = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
        cached = [
            Path(os.environ.get(f"HF_{name.upper()}_CACHE") or base / name)
            for name in ("hub", "modules")
        ]
        folders = [one for folder in (directory, *cached) for one in (folder, folder.resolve())]
        self._folders = tuple(f"{folder}{os.sep}" for folder in folders)
        self._loading = False
        sys.addaudithook(self._judge)

    def __enter__(self) -> None:
        self._loading = True

    def __exit__(self, *raised: object) -> None:
        self._loading = False

    def _judge(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "exec":
            self._refuse_below(getattr(args[0], "co_filename", ""))
        elif event == "import":
            self._refuse_below(args[1])
        elif event == "ctypes.dlopen":
            self._refuse_below(args[0])
        elif self._loading and event in _NEVER:
            raise PolicyRefused(f"the checkpoint would run {args[0]!r} ({event}): it is not loaded")

    def _refuse_below(self, file: Any) -> None:
        if not isinstance(file, str) or file.startswith("<"):  # a built-in, or a text's code
            return
        if os.path.abspath(file).startswith(self._folders):
            raise PolicyRefused(f"the checkpoint would run {file}: no code of a checkpoint is run")
