"""A LeRobot checkpoint as a policy, run by LeRobot itself. Imports torch and lerobot (0.6).

Runs in the interpreter that LeRobot's pins allow: of this project it imports only what needs
nothing but numpy.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vla_ros.core.assumption import Assumption
from vla_ros.core.clock import Clock
from vla_ros.core.files import read_json
from vla_ros.core.types import (
    Floats,
    Image,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Timeline,
)
from vla_ros.engine.io import hub
from vla_ros.engine.io.rates import action_rate_of
from vla_ros.engine.layers.devices import device_of
from vla_ros.engine.models.cameras import MAIN, WRIST
from vla_ros.policies.base import InvalidAction, PolicyRefused, PolicySpec
from vla_ros.policies.layout import (
    CONTROLLER_UNITS,
    PROTOCOL,
    ActionLayout,
    OwnUnits,
    action_layout,
    state_units_of,
)
from vla_ros.policies.lerobot.allowed import CodeWatch, check_folder
from vla_ros.policies.lerobot.checkpoint import (
    ACTION,
    CONFIG,
    POSTPROCESSOR,
    PREPROCESSOR,
    STATE,
    WEIGHTS,
    CameraFeature,
    Features,
    action_data_of,
    cameras_of,
    folder_of,
    read_features,
    state_scaling,
)
from vla_ros.policies.load import SETUP

# Loading: from a LeRobot folder or hub id to LeRobot's own objects.


#: Fields that make LeRobot fetch weights which the checkpoint's own then replace.
_FETCHING = {"load_vlm_weights": False, "pretrained_backbone_weights": None}


def load(directory: Path, spec: PolicySpec) -> tuple[Any, Any, Any]:
    """LeRobot's policy and the processors before and after it, on the device.

    PolicyRefused: in one line, LeRobot's error. :func:`check_weights` compares the weights.
    """
    check_folder(directory)
    try:
        with CodeWatch(directory):
            return _load(directory, spec)
    except PolicyRefused:
        raise
    except (Exception, SystemExit) as error:  # each library has kinds of its own; a parser exits
        reason = " ".join(str(error).split())
        raise PolicyRefused(
            f"LeRobot cannot load {directory}: {type(error).__name__}: {reason}{_offline(reason)}"
        ) from error


def _offline(reason: str) -> str:
    """What to do where the hub is missed; "" where it is not, or may be asked."""
    missed = any(word in reason for word in ("huggingface.co", "offline", "Hub"))
    if os.environ.get("HF_HUB_OFFLINE") != "1" or not missed:
        return ""
    return (
        "; a folder's policy does not ask the hub: fetch what it names once with `hf download"
        " NAME`, or start with HF_HUB_OFFLINE=0"
    )


def _load(directory: Path, spec: PolicySpec) -> tuple[Any, Any, Any]:
    try:
        from lerobot.configs import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError as error:
        raise PolicyRefused(f"LeRobot cannot be imported ({error}): {SETUP}") from error

    _ask_nobody()
    fields = _fields(spec.options, directory)
    tokenizer = spec.engine.tokenizer
    device, _ = device_of(spec.device)
    if spec.device.startswith("cuda") and not torch.cuda.is_available():
        raise PolicyRefused(f"device is {spec.device!r}, and LeRobot's torch sees no such device")
    config = PreTrainedConfig.from_pretrained(
        directory, cli_overrides=[f"--{name}={value}" for name, value in fields.items()]
    )
    config.device, config.pretrained_path = device, directory
    for name, value in _FETCHING.items():
        if hasattr(config, name):
            setattr(config, name, value)
    local = directory / str(getattr(config, "vlm_model_name", ""))
    if local != directory and local.is_dir():
        config.vlm_model_name = str(local)  # beside the weights, not on the hub
    policy = get_policy_class(config.type).from_pretrained(str(directory), config=config)
    policy.to(device)
    policy.eval()
    before, after = make_pre_post_processors(
        config,
        pretrained_path=str(directory),
        preprocessor_overrides=_overrides(directory / PREPROCESSOR, device, tokenizer),
        postprocessor_overrides=_overrides(directory / POSTPROCESSOR, "cpu", ""),
    )
    return policy, before, after


def _ask_nobody() -> None:
    """Transformers refuses code at once, where it would ask a terminal and wait."""
    with suppress(ImportError):  # it is an extra of LeRobot's
        from transformers import dynamic_module_utils

        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0


def _fields(options: Mapping[str, str], directory: Path) -> Mapping[str, str]:
    """Fields of config.json to replace. PolicyRefused: it has none of that name."""
    there = read_json(directory / CONFIG)
    if unknown := sorted(set(options) - set(there)):
        raise PolicyRefused(
            f"policy_options has {', '.join(unknown)}: of lerobot they are fields of the"
            f" checkpoint's config.json: {', '.join(sorted(there))}"
        )
    return options


def _overrides(path: Path, device: str, tokenizer: str) -> dict[str, dict[str, Any]]:
    """Replacements of the steps' own settings: LeRobot refuses names that a file does not have."""
    steps = read_json(path).get("steps", [])
    known = {step.get("registry_name"): step.get("config") or {} for step in steps}
    wanted: dict[str, dict[str, Any]] = {
        "device_processor": {"device": device},
        "rename_observations_processor": {"rename_map": {}},  # the names are the policy's already
    }
    own = str(known.get("tokenizer_processor", {}).get("tokenizer_name") or "")
    if tokenizer:
        wanted["tokenizer_processor"] = {"tokenizer_name": tokenizer}
    elif own and (path.parent / own).is_dir():
        wanted["tokenizer_processor"] = {"tokenizer_name": str(path.parent / own)}
    return {name: values for name, values in wanted.items() if name in known}


# The position gate of SmolVLM's vision tower: which row of its table each patch gets.
#
# The tower finds the rows with a bucket search in the weights' number format, so another version or
# format may move a patch by one row: the actions stay plausible and the policy is another one. The
# rows are computed at loading and compared, as integers, with those stored in the checkpoint's
# ``discrete.json`` (the native engine's file), else with exact arithmetic.


FILE = "discrete.json"
TOWER = "SmolVLMVisionEmbeddings"


def check_positions(model: Any, directory: Path, side: int) -> None:
    """Check the tower's rows for a square image of ``side`` pixels. PolicyRefused names the wrong
    ones. Models without that tower pass.
    """
    for module in model.modules():
        if type(module).__name__ == TOWER:
            found = positions(module, side)
            patches, rows = side // module.patch_size, module.num_patches_per_side
            _compare(stored(directory) or exact(patches, rows), found)


def positions(tower: Any, side: int) -> list[int]:
    """The rows that the tower looks up for an image of this size."""
    seen: list[torch.Tensor] = []
    hook = tower.position_embedding.register_forward_pre_hook(
        lambda _, arguments: seen.append(arguments[0])
    )
    weight = tower.patch_embedding.weight
    patches = side // tower.patch_size
    try:
        with torch.no_grad():
            tower(
                pixel_values=torch.zeros(
                    1, 3, side, side, dtype=weight.dtype, device=weight.device
                ),
                patch_attention_mask=torch.ones(
                    1, patches, patches, dtype=torch.bool, device=weight.device
                ),
            )
    finally:
        hook.remove()
    return [int(i) for i in seen[0].flatten().tolist()]


def exact(patches: int, rows: int) -> list[int]:
    """Patch (i, j) of n x n lies in cell (floor(i N / n), floor(j N / n)) of the table's N x N."""
    cells = [i * rows // patches for i in range(patches)]
    return [y * rows + x for y in cells for x in cells]


def stored(directory: Path) -> list[int] | None:
    """The checkpoint's own rows, where it has any."""
    path = directory / FILE
    if not path.is_file():
        return None
    try:
        raw = read_json(path)
        return [int(i) for i in raw["position_ids"]] if "position_ids" in raw else None
    except (OSError, ValueError, TypeError) as error:
        raise PolicyRefused(f"{path} cannot be read: {error}") from error


def _compare(wanted: list[int], found: list[int]) -> None:
    if len(wanted) != len(found):
        raise PolicyRefused(f"{len(wanted)} position ids are stored, the tower has {len(found)}")
    wrong = [i for i, pair in enumerate(zip(wanted, found, strict=True)) if pair[0] != pair[1]]
    if wrong:
        few = ", ".join(f"[{i}] {wanted[i]} is {found[i]}" for i in wrong[:3])
        raise PolicyRefused(
            f"{len(wrong)} of {len(wanted)} position ids are not the checkpoint's ({few}): this"
            " would be another policy; use the transformers and dtype that it was trained with"
        )


# Check of a loaded model against its file: every tensor accounted for, value by value.
#
# LeRobot's loaders are lenient: a name that changed between versions, or a file that is not there,
# is a line of log, and the weights stay as they were drawn at random.


PREFIX = "model."  # which older checkpoints of pi0 lack


def check_weights(model: torch.nn.Module, directory: Path) -> None:
    """Compare the model with ``model.safetensors``; PolicyRefused names what does not agree.

    Tensors that share memory need to be in the file once.
    """
    from safetensors import SafetensorError, safe_open

    state: Mapping[str, torch.Tensor] = model.state_dict()
    names = _renamer(model)
    path = directory / WEIGHTS
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            stored = {name: names(name) for name in file.keys()}  # noqa: SIM118
            _refuse_missing(state, {known for many in stored.values() for known in many})
            _refuse(
                "weights of the file are not used", [n for n, many in stored.items() if not many]
            )
            wrong = [
                name
                for name, many in stored.items()
                if not all(_same(file.get_tensor(name), state[known]) for known in many)
            ]
    except (OSError, SafetensorError) as error:
        raise PolicyRefused(f"{path} cannot be read: {error}") from error
    _refuse("weights are not the file's values", wrong)


def _renamer(model: torch.nn.Module) -> Callable[[str], list[str]]:
    """Map of names in the file to names in the model: LeRobot's renamings of openpi's, and the
    prefix."""
    state = model.state_dict()
    fix: Any = getattr(model, "_fix_pytorch_state_dict_keys", None)

    def names(name: str) -> list[str]:
        made = [name] if fix is None else fix({name: torch.zeros(())}, model.config)
        return [k for n in made for k in ([n] if n in state else [PREFIX + n]) if k in state]

    return names


def _refuse_missing(state: Mapping[str, torch.Tensor], stored: set[str]) -> None:
    there = {_memory(state[name]) for name in stored & set(state)}
    _refuse(
        "weights of the model are not in the file, and would be random",
        [n for n, tensor in state.items() if n not in stored and _memory(tensor) not in there],
    )


def _memory(tensor: torch.Tensor) -> tuple[object, ...]:
    """Key of a tensor's memory, equal for tensors that share it."""
    empty = tensor.numel() == 0
    return (id(tensor) if empty else tensor.data_ptr(), tensor.storage_offset(), tensor.shape)


def _same(stored: torch.Tensor, loaded: torch.Tensor) -> bool:
    """True if equal in the format that the model holds it in."""
    return stored.shape == loaded.shape and torch.equal(
        stored.to(loaded.dtype), loaded.detach().cpu()
    )


def _refuse(what: str, names: Iterable[str]) -> None:
    found = sorted(names)
    if found:
        few = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise PolicyRefused(
            f"{len(found)} {what}: {few}; save the policy with the LeRobot that runs it, or see"
            " its migration scripts"
        )


#: Kinds that take several observations or give one action, which only ``select_action`` handles.
_SELECTING = ("diffusion", "multi_task_dit", "tdmpc", "vqbet", "gaussian_actor")
#: Kinds that take images of their data set's size alone; the others resize by themselves.
_FIXED_SIZE = ("act", "diffusion", "tdmpc", "vqbet", "gaussian_actor")


class LerobotPolicy:
    """LeRobot's policy, of which every answer is the whole chunk, in m, rad and 0..1.

    The noise of an inference belongs to the seed and the observation's stamp, so a replay gives the
    same. LeRobot's queue of actions stays empty: the control loop has its own.
    """

    def __init__(self, spec: PolicySpec) -> None:
        directory = folder_of(spec.checkpoint)
        features = read_features(directory)
        self._features = features
        roles = spec.engine.camera_roles
        self._cameras = cameras_of(features, spec.engine.camera_map, roles)
        self._state = state_scaling(features, spec.state_units)
        data, rate_hz = action_data_of(directory, features), action_rate_of(directory)
        own = OwnUnits()
        self._data, self._mirrored = data, bool(data.libero) and features.action_dim == 7
        if self._mirrored:
            own = OwnUnits(CONTROLLER_UNITS, source=f"{PROTOCOL} ({data.libero})")
        self._layout = action_layout(data, features.action_dim, spec, own, rate_hz)
        self._seed = spec.seed
        self._task = ""
        if spec.num_threads:
            torch.set_num_threads(spec.num_threads)
        self._policy, self._before, self._after = load(directory, spec)
        check_weights(self._policy, directory)
        self._check_positions(directory)
        self.info = self._info(spec, directory, chunk=len(self._try()))

    def _check_positions(self, directory: Path) -> None:
        side = getattr(self._policy.config, "resize_imgs_with_padding", None)
        if side:
            check_positions(self._policy, directory, int(side[0]))

    def _info(self, spec: PolicySpec, directory: Path, chunk: int) -> PolicyInfo:
        dtype = next(self._policy.parameters()).dtype
        return PolicyInfo(
            name="lerobot",
            decoding=self._features.kind,
            checkpoint=spec.checkpoint,
            checkpoint_sha256=hub.sha256_of_file(directory / WEIGHTS),
            device=device_of(spec.device)[0],
            dtype=str(dtype).removeprefix("torch."),
            chunk_length=chunk,
            cameras=2 if WRIST in self._cameras else 1,
            camera_roles=tuple(r for r in spec.engine.camera_roles if r in self._cameras),
            conventions=_conventions(self._features, self._cameras, self._layout, spec),
            contradiction=self._layout.doubt,
            assumptions=self._assumptions(spec, chunk),
            state_dim=self._features.state_dim,
            action_space=self._layout.space,
            action_rate_hz=action_rate_of(directory),
            observations=self._features.observations if self._keeps() else 1,
        )

    def _keeps(self) -> bool:
        """Whether it keeps the observations before by itself."""
        return self._features.kind in _SELECTING

    def _assumptions(self, spec: PolicySpec, chunk: int) -> tuple[Assumption, ...]:
        _, state = state_units_of(spec, self._features.state_dim)
        images = Assumption.taken("orientation of images", "as they come")
        if self._mirrored:
            images = Assumption(
                "orientation of images", "mirrored", f"{PROTOCOL} ({self._data.libero})"
            )
        return (
            *self._layout.assumptions,
            *filter(None, [state]),
            images,
            Assumption("chunk", f"{chunk} actions", CONFIG),
        )

    def reset(self, instruction: Instruction) -> None:
        """A new task: forget observations; follow ``instruction``."""
        self._task = instruction.text
        self._policy.reset()

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """The chunk [C, D]. InvalidAction: the frame lacks a camera or values, or the output has
        no numbers."""
        self._draw(observation.stamp_ns)
        with torch.no_grad():
            batch = self._before(self._batch(observation))
            timeline = timeline.mark("preprocess", clock.steady_ns())
            chunk = self._after(self._chunk(batch))
        actions = self._layout.read(chunk[0].float().cpu().numpy())
        if not np.isfinite(actions).all():
            raise InvalidAction("LeRobot's policy gave something that is no number")
        for stage in ("vision", "prefill"):
            timeline = timeline.mark(stage, timeline.end_ns)
        timeline = timeline.mark("decode", clock.steady_ns())
        return Inference(observation.stamp_ns, actions, timeline)

    def _draw(self, stamp_ns: int) -> None:
        digest = hashlib.blake2b(f"{self._seed} {stamp_ns}".encode(), digest_size=4).digest()
        torch.manual_seed(int.from_bytes(digest, "big"))

    def _chunk(self, batch: dict[str, Any]) -> torch.Tensor:
        """The model's actions [1, C, D], in its own space."""
        if self._features.kind not in _SELECTING:
            chunk: torch.Tensor = self._policy.predict_action_chunk(batch)
            return chunk
        first = self._policy.select_action(batch)
        queue = getattr(self._policy, "_queues", {}).get(ACTION, ())
        actions = [first, *queue]
        if queue:
            queue.clear()
        return torch.stack(actions, 1)

    def _batch(self, observation: Observation) -> dict[str, Any]:
        """Batch by the checkpoint's own names: float32 [3, H, W] within 0..1, [S], and the task."""
        images = {MAIN: observation.image, WRIST: observation.wrist_image}
        images |= observation.more_images
        batch: dict[str, Any] = {"task": self._task}
        for role, camera in self._cameras.items():
            if (image := images.get(role)) is None:
                raise InvalidAction(f"this checkpoint needs a {role} image and the frame has none")
            batch[camera.name] = self._pixels(image, camera)
        if wanted := self._features.state_dim:
            state = observation.proprio
            if state is None or len(state) != wanted:
                has = "none" if state is None else len(state)
                raise InvalidAction(
                    f"this checkpoint needs {wanted} values of robot state and the frame has {has}"
                )
            values = self._state.to_checkpoint(np.asarray(state, np.float64))
            batch[STATE] = torch.from_numpy(values.astype(np.float32))
        return batch

    def _pixels(self, image: Image, camera: CameraFeature) -> torch.Tensor:
        seen = image[:, ::-1] if self._mirrored else image
        pixels = torch.from_numpy(np.ascontiguousarray(seen)).permute(2, 0, 1).float() / 255.0
        size = (camera.height, camera.width)
        if self._features.kind not in _FIXED_SIZE or pixels.shape[1:] == size:
            return pixels
        resized = torch.nn.functional.interpolate(
            pixels[None], size, mode="bilinear", antialias=True
        )
        return resized[0].clamp(0.0, 1.0)

    def _try(self) -> Floats:
        """One inference on grey images; PolicyRefused where it cannot be made."""
        grey = {
            role: np.full((c.height, c.width, 3), 128, np.uint8)
            for role, c in self._cameras.items()
        }
        state = self._state.to_runtime(np.zeros(self._features.state_dim))
        main = grey.pop(MAIN, np.zeros((8, 8, 3), np.uint8))
        seen = Observation(1, 1, 1, main, grey.pop(WRIST, None), state, more_images=grey)
        self.reset(Instruction("try", -1))
        try:
            self._draw(1)
            with torch.no_grad():
                chunk = self._after(self._chunk(self._before(self._batch(seen))))
        except Exception as error:
            reason = " ".join(str(error).split())
            raise PolicyRefused(
                f"LeRobot's {self._features.kind} cannot act on its own features:"
                f" {type(error).__name__}: {reason}"
            ) from error
        self._policy.reset()
        return self._layout.read(chunk[0].float().cpu().numpy())


def _conventions(
    features: Features,
    cameras: Mapping[str, CameraFeature],
    layout: ActionLayout,
    spec: PolicySpec,
) -> str:
    """One line for a log."""
    views = ", ".join(f"{role} is {camera}" for role, camera in cameras.items())
    words = spec.action_units or layout.space.units
    units = words if len(words) > 1 else words * layout.space.width
    values = " ".join(f"{n}[{u}]" for n, u in zip(layout.space.names, units, strict=True))
    kind = layout.space.kind.name.lower().replace("_", " ")
    state = f"state {features.state_dim}" + (
        f" in {' '.join(spec.state_units)}" if spec.state_units else ""
    )
    return f"{views}; {state}; {kind}s {values}"
