"""The files of a GR00T folder that describe a robot: read as an
:class:`~vla_ros.engine.io.embodiment.Embodiment`, and written.

Source: NVIDIA/Isaac-GR00T. N1.6 and N1.7 (``processing_gr00t_n1d7.py``, ``data/types.py``,
``state_action_processor.py``, ``data/utils.py``, ``pose.py``) say it in ``processor_config.json``
(what each robot sees, is and does), ``statistics.json`` (of its data) and ``embodiment_id.json``
(its row among the head's encoders), in a folder's root or in ``processor/``.

N1.5 (``data/schema.py``, ``policy.py``, ``data/embodiment_tags.py``,
``experiment/data_config.py``) has the statistics of every group of values by robot in
``experiment_cfg/metadata.json``. Which of them the model was shown, in which order and how they
were scaled is said by a class of the user's Python: here by a ``data_config.json`` in the folder,

    {"video": ["front", "wrist"], "state": ["single_arm", "gripper"],
     "action": ["single_arm", "gripper"], "modes": {"action.gripper": "binary"}, "crop": 0.95}

with a mode for each group that is not scaled by its least and greatest value (``min_max``): one of
``q99``, ``mean_std``, ``binary``, ``sin_cos`` or ``none``. Two of NVIDIA's own are known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.embodiment import MODES, Embodiment, Floats, Group, Relative
from vla_ros.engine.io.ends import check_ends
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import GROOT_PROCESSOR
from vla_ros.engine.io.files import names_in, read_json, write_json
from vla_ros.engine.io.images.framing import Framing

PROCESSOR, STATISTICS, ROWS = "processor_config.json", "statistics.json", "embodiment_id.json"
_LETTERBOX = "letter_box_transform"
METADATA, DATA_CONFIG = "experiment_cfg/metadata.json", "data_config.json"
#: The head's row of encoders for robots whose row no file says: NVIDIA's
#: ``EMBODIMENT_TAG_TO_PROJECTOR_INDEX`` (N1.7, N1.6) and ``EMBODIMENT_TAG_MAPPING`` (N1.5).
N17_ROWS = {
    "oxe_droid_relative_eef_relative_joint": 24,
    "xdof_relative_eef_relative_joint": 27,
    "xdof_relative_eef_relative_joint_subtask": 27,
    "real_g1_relative_eef_relative_joints": 25,
    "real_r1_pro_sharpa_relative_eef": 26,
    "real_r1_pro_sharpa_relative_eef_human": 26,
    "real_r1_pro_sharpa_relative_eef_maxinsights": 26,
    "real_r1_pro_sharpa_relative_eef_mecka": 26,
    "unitree_g1_full_body_with_waist_height_nav_cmd": 25,
    "unitree_g1_sonic": 11,
    "simpler_env_google": 0,
    "simpler_env_widowx": 1,
    "libero_sim": 2,
    "new_embodiment": 10,
    "robocasa_panda_omron": 10,
    "robocasa_gr1_tabletop": 10,
}
N16_ROWS = {
    "robocasa_panda_omron": 13,
    "gr1": 20,
    "behavior_r1_pro": 24,
    "unitree_g1": 8,
    "libero_panda": 2,
    "oxe_google": 0,
    "oxe_widowx": 1,
    "oxe_droid": 16,
    "new_embodiment": 10,
}
N15_ROWS = {"new_embodiment": 31, "oxe_droid": 17, "agibot_genie1": 26, "gr1": 24}
_ARMS = ["left_arm", "right_arm", "left_hand", "right_hand", "waist"]
_GENIE = ("left_arm_joint", "right_arm_joint", "left_effector", "right_effector", "head", "waist")
#: NVIDIA's fourier_gr1_arms_waist and agibot_genie1.
_DATA_CONFIGS: dict[str, dict[str, object]] = {
    "gr1": {
        "video": ["ego_view"],
        "state": _ARMS,
        "action": _ARMS,
        "modes": {f"state.{name}": "sin_cos" for name in _ARMS},
    },
    "agibot_genie1": {
        "video": ["top_head", "hand_left", "hand_right"],
        "state": [f"{name}_position" for name in _GENIE],
        "action": [*(f"{name}_position" for name in _GENIE), "robot_velocity"],
    },
}
CROP = 0.95  # what of an image stays, in all of NVIDIA's data configurations of N1.5
_FORMATS = {"XYZ_ROT6D": (Relative.ROT6D, 9), "XYZ_ROTVEC": (Relative.ROTVEC, 6)}


def choose(tag: str | None, known: list[str], where: Path) -> str:
    """The chosen robot, in any letters, or the only one. CheckpointError lists them."""
    if not known:
        raise CheckpointError(f"{where} has statistics of no robot that {PROCESSOR} knows")
    listed = ", ".join(sorted(known))
    if tag is None:
        if len(known) > 1:
            raise CheckpointError(
                f"{where} was trained for {len(known)} robots: name one with 'embodiment': {listed}"
            )
        return known[0]
    fitting = [name for name in known if name.lower() == tag.strip().lower()]
    if not fitting:
        raise CheckpointError(f"embodiment {tag!r} is unknown: {where} has {listed}")
    return fitting[0]


def _names(fields: Fields, name: str, *, once: bool = False) -> tuple[str, ...]:
    """Names in a list; ``once``: at least one, and none twice."""
    values = fields.items(name)
    strange = any(not isinstance(v, str) for v in values)
    if strange or (once and (not values or len(set(values)) < len(values))):
        raise fields.wrong(name, "names, each once" if once else "names")
    return tuple(values)


def _numbers(statistics: Fields, name: str, size: int | None = None) -> Floats:
    """Finite statistics: float32 [size], or without a size float64 [n] or [rows, n]."""
    count = "" if size is None else f"{size} "
    try:
        values = np.array(statistics.items(name))
    except ValueError:
        raise statistics.wrong(name, f"{count}numbers") from None
    if values.dtype.kind not in "biuf":
        raise statistics.wrong(name, f"{count}numbers")
    with np.errstate(over="ignore"):  # what is too large for float32 is not finite there
        values = values.astype(np.float64 if size is None else np.float32)
    fits = values.size and values.ndim in (1, 2) if size is None else values.shape == (size,)
    if not fits or not np.isfinite(values).all():
        raise statistics.wrong(name, f"{count}finite numbers")
    return values


# The processor files of N1.6 and N1.7.


def read_processor(directory: Path, tag: str | None, known: Mapping[str, int]) -> Embodiment:
    """The robot ``tag`` of a folder, or its only one; ``known`` rows of robots that no file says.

    CheckpointError in one line, with the robots that there are, or for what cannot be used.
    """
    folders = (directory, directory / "processor")
    folder = next((f for f in folders if (f / PROCESSOR).is_file()), None)
    if folder is None:
        raise CheckpointError(
            f"no {PROCESSOR} in {directory} or its folder processor: there is {names_in(directory)}"
        )
    settings = Fields(read_json(folder / PROCESSOR), PROCESSOR).part("processor_kwargs")
    GROOT_PROCESSOR.check(settings.raw, f"{PROCESSOR}: processor_kwargs.")
    if not (folder / STATISTICS).is_file():
        raise CheckpointError(f"no {STATISTICS} in {folder}: there is {names_in(folder)}")
    known_statistics = read_json(folder / STATISTICS)
    modalities = settings.part("modality_configs").raw
    tag = choose(tag, [name for name in modalities if name in known_statistics], folder)
    rows = dict(known)
    if (folder / ROWS).is_file():
        rows |= read_json(folder / ROWS)
    row = rows.get(tag)
    if isinstance(row, bool) or not isinstance(row, int) or row < 0:
        raise CheckpointError(f"{folder / ROWS} gives {tag!r} the row {row!r}: wanted a number")
    about, statistics = Fields(modalities[tag], tag), Fields(known_statistics[tag], tag)
    video, state, action = (about.part(name) for name in ("video", "state", "action"))
    for part, name in ((video, "image"), (state, "state")):
        if part.items("delta_indices") != [0]:
            raise part.wrong("delta_indices", f"[0]: one {name}, the newest, is built")
    horizon = len(action.items("delta_indices"))
    if action.items("delta_indices") != list(range(horizon)) or not horizon:
        raise action.wrong("delta_indices", "0, 1, 2 and so on")
    states = _state_groups(settings, state, statistics)
    return Embodiment(
        tag=tag,
        row=row,
        cameras=_names(video, "modality_keys"),
        state=states,
        actions=_action_groups(settings, action, statistics, states),
        horizon=horizon,
        framing=_framing(settings),
        formal=settings.flag("formalize_language", True),
    )


def _state_groups(settings: Fields, state: Fields, statistics: Fields) -> tuple[Group, ...]:
    quantiles = settings.flag("use_percentiles", False)
    hidden = settings.flag("exclude_state", False) or state.flag("exclude_state", False)
    turns = settings.flag("apply_sincos_state_encoding", False)
    clip = settings.flag("clip_outliers", True)
    turned_keys = _names(state, "sin_cos_embedding_keys") if turns else ()
    spread = _names(state, "mean_std_embedding_keys")
    groups = []
    for name in _names(state, "modality_keys"):
        turns_here, spreads = name in turned_keys, name in spread and name not in turned_keys
        low, high = _ends(statistics.part("state").part(name), spreads, quantiles)
        if not spreads:  # the authors' isclose, of what does not move
            high = np.where(np.isclose(high, low), low, high)
        mode = "sin_cos" if turns_here else "mean_std" if spreads else "min_max"
        groups.append(Group(name, low, high, "zero" if hidden else mode, clip))
    return tuple(groups)


def _action_groups(
    settings: Fields, action: Fields, statistics: Fields, states: tuple[Group, ...]
) -> tuple[Group, ...]:
    quantiles = settings.flag("use_percentiles", False)
    spread = _names(action, "mean_std_embedding_keys")
    names, said = _names(action, "modality_keys"), action.items("action_configs")
    if said and len(said) != len(names):
        raise action.wrong("action_configs", f"one for each of {', '.join(names)}")
    relative_at_all = settings.flag("use_relative_action", False)
    groups = []
    for place, name in enumerate(names):
        how, begin, size = Relative.NOTHING, 0, 0
        if said and relative_at_all:
            how, begin, size = _relative(Fields(said[place], f"action {name}"), name, states)
        # Of relative actions the authors' code takes the ends, also where it takes quantiles else.
        own = statistics.part("relative_action" if how is not Relative.NOTHING else "action")
        ends = quantiles and how is Relative.NOTHING
        low, high = _ends(own.part(name), name in spread, ends)
        if size not in (0, low.shape[-1]):
            raise CheckpointError(
                f"action {name} has {low.shape[-1]} values and is relative to {size} of the state"
            )
        mode = "mean_std" if name in spread else "min_max"
        groups.append(Group(name, low, high, mode, relative=how, begin=begin))
    return tuple(groups)


def _relative(said: Fields, name: str, states: tuple[Group, ...]) -> tuple[Relative, int, int]:
    """The kind of a relative action, and where in the state its origin is: begin and size."""
    if said.choice("rep", "ABSOLUTE", ("RELATIVE", "DELTA", "ABSOLUTE")) != "RELATIVE":
        return Relative.NOTHING, 0, 0
    key, begin = said.text("state_key", name), 0
    for group in states:
        if group.name == key:
            break
        begin += group.size
    else:
        raise said.wrong("state_key", f"one of {', '.join(g.name for g in states)}")
    if said.choice("type", "NON_EEF", ("EEF", "NON_EEF")) == "NON_EEF":
        return Relative.SUM, begin, group.size
    how, size = _FORMATS[said.choice("format", "DEFAULT", tuple(_FORMATS))]
    if group.size != size:
        raise said.wrong("format", f"one for the {group.size} values of {key}")
    return how, begin, size


def _ends(statistics: Fields, spreads: bool, quantiles: bool) -> tuple[Floats, Floats]:
    """Mean and deviation, or two quantiles, or least and greatest."""
    mode = "mean_std" if spreads else "q99" if quantiles else "min_max"
    first, second = MODES[mode]
    low, high = _numbers(statistics, first), _numbers(statistics, second)
    if low.shape != high.shape:
        raise statistics.wrong(second, f"as many numbers as {first}")
    check_ends(low, high, (first, second), statistics.where)
    return low, high


def _framing(settings: Fields) -> Framing:
    """The square that an image becomes; both ways of saying so."""
    if not settings.flag("use_albumentations", False):
        raise settings.wrong("use_albumentations", "true: the resizing of torchvision is not built")
    target, crop = settings.square("image_target_size", 256), settings.raw.get("image_crop_size")
    share = settings.raw.get("crop_fraction")
    if share is None:
        share = 1.0 if crop is None else settings.square("image_crop_size", 1) / target
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise settings.wrong("crop_fraction", "a number above 0, at most 1")
    side, padded = settings.whole("shortest_image_edge", target), settings.raw.get(_LETTERBOX)
    # null or absent: NVIDIA's code of before that setting always padded
    return Framing(
        side, float(share), squares=padded is not None and not settings.flag(_LETTERBOX, True)
    )


def write_processor(directory: Path, robot: Embodiment) -> None:
    """Write the three files for one robot, with all that :func:`read_processor` reads back. Its
    groups are scaled by a range, and its actions are relative to nothing."""
    newest, framing = [0], robot.framing
    modality = {
        "video": {"delta_indices": newest, "modality_keys": list(robot.cameras)},
        "state": {"delta_indices": newest, "modality_keys": [g.name for g in robot.state]},
        "action": {
            "delta_indices": list(range(robot.horizon)),
            "modality_keys": [g.name for g in robot.actions],
        },
        "language": {"delta_indices": newest, "modality_keys": ["task"]},
    }
    settings = {
        "modality_configs": {robot.tag: modality},
        "image_target_size": [framing.side] * 2,
        "shortest_image_edge": framing.side,
        "crop_fraction": framing.share,
        "use_albumentations": True,
        **({_LETTERBOX: False} if framing.squares else {}),
        "formalize_language": robot.formal,
        "clip_outliers": all(group.clip for group in robot.state),
    }
    said = ("min", "max", "mean", "std")
    statistics = {"state": _said(robot.state, said), "action": _said(robot.actions, said)}
    processor = {"processor_class": "Gr00tProcessor", "processor_kwargs": settings}
    write_json(directory / PROCESSOR, processor)
    write_json(directory / STATISTICS, {robot.tag: statistics})
    write_json(directory / ROWS, {robot.tag: robot.row})


def _said(groups: tuple[Group, ...], names: tuple[str, ...]) -> dict[str, dict[str, list[float]]]:
    """Statistics of these names, of which the ends are known."""
    out = {}
    for group in groups:
        low, high = group.low.astype(np.float64), group.high.astype(np.float64)
        known = {"min": low, "max": high, "q01": low, "q99": high}
        known |= {"mean": (low + high) / 2, "std": (high - low) / 4}
        out[group.name] = {name: known[name].tolist() for name in names}
    return out


# The metadata of N1.5.


def read_metadata(
    directory: Path, tag: str | None, known: Mapping[str, int] = N15_ROWS
) -> Embodiment:
    """The robot ``tag`` of a folder, or its only one; ``known`` rows of robots. The side of its
    images and its horizon are config.json's: here they are the published ones.

    CheckpointError in one line, with the robots that there are, or for what cannot be used.
    """
    path = directory / METADATA
    if not path.is_file():
        raise CheckpointError(f"no {METADATA} in {directory}: there is {names_in(directory)}")
    metadata = read_json(path)
    tag = choose(tag, sorted(metadata), directory)
    if tag not in known:
        raise CheckpointError(
            f"{path} has a robot {tag!r}, which N1.5 gives no encoders: {', '.join(known)}"
        )
    about = Fields(metadata[tag], tag)
    said = _data_config(directory, tag, about)
    modes = said.part("modes")
    cameras = _names(said, "video", once=True)
    for name in cameras:
        if name not in about.part("modalities").part("video").raw:
            raise said.wrong("video", f"of {_listed(about, 'video')}")
    groups = {
        kind: tuple(_group(about, kind, name, modes) for name in _names(said, kind, once=True))
        for kind in ("state", "action")
    }
    strange = set(modes.raw) - {f"{k}.{g.name}" for k in groups for g in groups[k]}
    if strange:
        raise CheckpointError(f"modes has {', '.join(sorted(strange))}, of which nothing is used")
    crop = said.number("crop", CROP)
    if crop > 1:
        raise said.wrong("crop", "a number above 0, at most 1")
    framing = Framing(224, crop, letterbox=False)
    states, actions = groups["state"], groups["action"]
    return Embodiment(tag, known[tag], cameras, states, actions, 16, framing, formal=False)


def _data_config(directory: Path, tag: str, about: Fields) -> Fields:
    path = directory / DATA_CONFIG
    if path.is_file():
        return Fields(read_json(path), DATA_CONFIG)
    if tag in _DATA_CONFIGS:
        return Fields(_DATA_CONFIGS[tag], tag)
    kinds = ("video", "state", "action")
    names = {kind: sorted(about.part("modalities").part(kind).raw) for kind in kinds}
    raise CheckpointError(
        f"no {DATA_CONFIG} in {directory}: what {tag} sees, is and does, and in which order, is in"
        f" the Python that trained it; write it down, of {json.dumps(names)}"
    )


def _group(about: Fields, kind: str, name: str, modes: Fields) -> Group:
    known = about.part("modalities").part(kind)
    if name not in known.raw:
        raise CheckpointError(
            f"{DATA_CONFIG} has {kind} {name!r}, the metadata {_listed(about, kind)}"
        )
    group = known.part(name)
    mode = modes.choice(f"{kind}.{name}", "min_max", tuple(MODES))
    if kind == "action" and mode == "sin_cos":
        raise modes.wrong(f"{kind}.{name}", "a mode that can be undone")
    if mode != "binary" and group.raw.get("continuous") is False:
        raise modes.wrong(f"{kind}.{name}", "binary, of values that are not continuous")
    shape = group.items("shape")
    if len(shape) != 1 or isinstance(shape[0], bool) or not isinstance(shape[0], int):
        raise group.wrong("shape", "one number")
    statistics = about.part("statistics").part(kind).part(name)
    ends = [_numbers(statistics, end, shape[0]) for end in MODES[mode]]
    low, high = ends or (np.zeros(shape[0], np.float32), np.ones(shape[0], np.float32))
    if MODES[mode]:
        check_ends(low, high, MODES[mode], statistics.where)
    return Group(name, low, high, mode, clip=kind == "state" and mode == "q99")


def _listed(about: Fields, kind: str) -> str:
    return ", ".join(sorted(about.part("modalities").part(kind).raw)) or "nothing"


def write_metadata(directory: Path, robot: Embodiment) -> None:
    """Write both files for one robot, that :func:`read_metadata` reads back; its groups are scaled
    by their least and greatest values."""
    kinds = {"state": robot.state, "action": robot.actions}
    said = ("min", "max", "q01", "q99", "mean", "std")
    camera = {"resolution": [256, 256], "channels": 3, "fps": 20.0}
    modalities: dict[str, dict[str, Any]] = {"video": dict.fromkeys(robot.cameras, camera)}
    for kind, groups in kinds.items():
        modalities[kind] = {g.name: {"shape": [g.size], "continuous": True} for g in groups}
    metadata = {
        "statistics": {kind: _said(groups, said) for kind, groups in kinds.items()},
        "modalities": modalities,
        "embodiment_tag": robot.tag,
    }
    (directory / METADATA).parent.mkdir(parents=True, exist_ok=True)
    write_json(directory / METADATA, {robot.tag: metadata})
    names = {kind: [group.name for group in groups] for kind, groups in kinds.items()}
    write_json(directory / DATA_CONFIG, {"video": list(robot.cameras), **names})
