"""The description of a checkpoint's folder, by its names, its JSON and its weights' headers.

Apart from the loaders, since nothing here imports torch or reads a tensor: an answer takes a
second where a policy of gigabytes takes minutes. What is in the weights themselves (a tensor's
shape, NaN) is left to loading, and to `vla-ros doctor --checkpoint FOLDER --full`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.config import ModelConfig, parse_config
from vla_ros.engine.io.field_table import Fields, FieldTable
from vla_ros.engine.io.fields import (
    FAST_TOKENIZER,
    GROOT_N15,
    GROOT_N16,
    GROOT_N17,
    LEROBOT,
    TURBOVLA,
)
from vla_ros.engine.io.files import AGAIN, header, read_json, tokenizer_folders, weight_map
from vla_ros.engine.io.flow_config import (
    ACTION,
    FAST,
    IDENTITY,
    KINDS,
    NORMALIZER,
    POSTPROCESSOR,
    PREPROCESSOR,
    STATE,
    TOKENIZER,
    UNNORMALIZER,
    by_data_set,
    camera_names,
    fast_folder,
    feature_length,
    known_steps,
    no_action_statistics,
    normalization_mode,
    read_flow_config,
    read_steps,
    relative_actions,
    robots_cameras,
    steps_of,
)
from vla_ros.engine.io.foreign import refuse_foreign, refuse_foreign_flow
from vla_ros.engine.io.hub import SHIPPED, folder_of, shipped
from vla_ros.engine.io.tokens import read_normalizer
from vla_ros.engine.models.cameras import roles_of

ACT, EVO1 = "act", "evo1"  # LeRobot's kinds whose config is not one of pi0's kin
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LAUNCH = "ros2 launch vla_ros policy.launch.py policy:=vla checkpoint:="
#: Choices that the node takes through its engine_options.
_OPTIONS = ("state_normalization", "state_in_prompt")
_COMMAND = re.compile(r"`([^`]+)`")
#: ``model_type`` of NVIDIA's folders: kind, fields, the file of its robots
_GROOTS: dict[str, tuple[str, FieldTable, str]] = {
    "Gr00tN1d7": ("groot-n1.7", GROOT_N17, "processor_config.json"),
    "Gr00tN1d6": ("groot-n1.6", GROOT_N16, "processor_config.json"),
    "gr00t_n1_5": ("groot-n1.5", GROOT_N15, "experiment_cfg/metadata.json"),
}


@dataclass(slots=True)
class FolderDescription:
    """A folder. ``needs``: what a robot must have and somebody must choose; ``lacks``: what is in
    the way of loading it, each a line; ``next``: the command that comes next.

    ``cameras``: the checkpoint's names of its cameras, or how many roles of ours it looks through;
    ``state`` and ``actions``: how many values; 0 none, or not said.
    """

    directory: Path
    family: str = "unknown"
    weights: str = ""
    needs: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    next: str = ""
    cameras: tuple[str, ...] = ()
    state: int = 0
    actions: int = 0

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Parameters, or options of the engine, that somebody must choose -> what there is."""
        found = {}
        for need in self.needs:
            name, colon, values = need.partition(": one of ")
            if colon and name != "camera_map":
                found[name] = tuple(value.split(" (")[0] for value in values.split(", "))
            elif name.startswith("state_normalization: "):
                found["state_normalization"] = ("identity",)
        return found

    @contextmanager
    def finding(self) -> Iterator[None]:
        """A CheckpointError from inside the block is something that it lacks."""
        try:
            yield
        except CheckpointError as error:
            reason = " ".join(str(error).split())
            self.lacks.append(reason)
            if not self.next and (command := _COMMAND.search(reason)):
                self.next = command[1]


def describe(name: str) -> FolderDescription:
    """The description of a folder, of ``shipped:<name>``, or of a commit on the hub.
    CheckpointError: there is none."""
    return describe_folder(shipped(name) if name.startswith(SHIPPED) else folder_of(name), name)


def describe_folder(directory: Path, name: str = "") -> FolderDescription:
    """The description of a local folder that is called ``name`` in commands. Compares no hashes."""
    name = name or str(directory)
    found = FolderDescription(directory)
    with found.finding():
        _fill(found)
    if not found.lacks and not found.next:
        found.next = LAUNCH + name + _chosen(found.needs)
    return found


def _chosen(needs: Iterable[str]) -> str:
    """The launch arguments for what must be chosen: parameters of the node, as YAML."""
    chosen = {need.partition(": ")[0]: "..." for need in needs if ": one of" in need}
    if any(need.startswith("state_normalization: ") for need in needs):
        chosen["state_normalization"] = "identity"
    words = [f"{name}={chosen.pop(name)}" for name in _OPTIONS if name in chosen]
    pairs = [f"{name}: {value}" for name, value in chosen.items()]
    pairs += [f"engine_options: [{', '.join(words)}]"] * bool(words)
    return f" parameters:='{{{', '.join(pairs)}}}'" if pairs else ""


def _fill(found: FolderDescription) -> None:
    path = found.directory / "config.json"
    raw = read_json(path) if path.is_file() else {}
    kind, model = raw.get("type"), raw.get("model_type")
    if kind in LEROBOT:
        found.family = f"{kind} of LeRobot"
        _flow(found, str(kind), raw)
    elif model in _GROOTS:
        _groot(found, raw, *_GROOTS[str(model)])
    elif raw.get("name") == "TurboVLA":
        _turbovla(found, raw)
    else:
        if isinstance(kind, str):
            found.family = f"{kind} of LeRobot"
        refuse_foreign(found.directory)
        _tokens(found, raw)


# Flow policies


def _flow(found: FolderDescription, kind: str, raw: Mapping[str, Any]) -> None:
    directory = found.directory
    with found.finding():
        refuse_foreign_flow(directory)
    if found.lacks:
        return
    with found.finding():
        found.weights = _weights(directory)
    has_state = True
    with found.finding():
        if kind in KINDS:
            config = read_flow_config(directory)
            cameras, state, action = config.cameras, config.state_dim, config.action_dim
            before, after = (steps_of(directory / name) for name in (PREPROCESSOR, POSTPROCESSOR))
            relative_actions(directory, before, after, config)
        else:
            LEROBOT[kind].check(raw)
            fields = Fields(raw)
            cameras = robots_cameras(directory, camera_names(fields))
            action = feature_length(fields, "output_features", ACTION, 24)
            has_state = kind == EVO1 or STATE in fields.part("input_features").raw
            if has_state:
                state = feature_length(fields, "input_features", STATE, 24)
        found.needs.append(_cameras(cameras))
        found.cameras, found.actions = tuple(cameras), action
        found.state = state if has_state else 0
        wanted = f"a state of {state} values" if has_state else "no state"
        found.needs.append(f"{wanted}; it gives actions of {action}")
        if (decay := raw.get("temporal_ensemble_coeff")) is not None:
            found.needs.append(
                f"execution: ensemble and ensemble_decay: {decay}, with which LeRobot runs it"
            )
        speaks = kind in ("pi05", FAST)
        if speaks and state < config.state_width and not config.state_in_prompt:
            found.needs.append(
                "state_in_prompt: one of robot (trained with openpi or LeRobot 0.6), padded (0.4)"
            )
    with found.finding():
        _statistics(found, kind, has_state)
    if kind == ACT:
        return
    with found.finding():
        _check_tokenizer(found, kind, raw)
    if kind == FAST:
        with found.finding():
            fast_folder(directory, None, str(raw.get("action_tokenizer_name") or FAST_TOKENIZER))


def _cameras(cameras: tuple[str, ...]) -> str:
    """The robot's camera that each is taken for, or the choice that must be made."""
    try:
        pairs = zip(cameras, roles_of(cameras), strict=True)
        return "cameras " + ", ".join(f"{name} ({role})" for name, role in pairs)
    except CheckpointError:
        names = " ".join(f"{name}=..." for name in cameras)
        return f"camera_map: one of main, wrist, none or a camera's name for each, '{names}'"


def _statistics(found: FolderDescription, kind: str, has_state: bool) -> None:
    directory = found.directory
    known = known_steps(kind) if kind in KINDS else None
    before, after = read_steps(directory, (UNNORMALIZER, NORMALIZER), known, images=kind == ACT)
    for step, feature, which in (
        (after[UNNORMALIZER], ACTION, "ACTION"),
        (before[NORMALIZER], STATE, "STATE"),
    )[: 1 + has_state]:
        mode = normalization_mode(step, which, feature)
        file = step.text("state_file", "")
        stored = header(directory / Path(file).name) if file else {}
        if mode == IDENTITY:
            continue
        sets = by_data_set(stored, feature)
        if not sets and feature == ACTION:
            raise no_action_statistics(directory, mode)
        if not sets:
            found.needs.append(
                "state_normalization: identity, since there are no statistics of the state (where"
                " that is right: LeRobot does it without a word)"
            )
        elif "" not in sets and feature == ACTION:
            found.needs.append(f"unnorm_key: one of {', '.join(sorted(sets))}")


def _check_tokenizer(found: FolderDescription, kind: str, raw: Mapping[str, Any]) -> None:
    """Refuse a folder without a tokenizer: LeRobot's only name theirs. CheckpointError."""
    directory = found.directory
    name = str(raw.get("vlm_model_name") or "")
    if kind in KINDS:
        step = steps_of(directory / PREPROCESSOR).get(TOKENIZER)
        name = "" if step is None else step.part("config").text("tokenizer_name", "")
    folders = tokenizer_folders(directory, None, name)
    if any((folder / "tokenizer.json").is_file() for folder in folders):
        return
    whose = name or "its language model"
    raise CheckpointError(
        f"no tokenizer.json in {directory}: it is {whose}'s; copy it there, or name its folder with"
        f" the option tokenizer: `hf download {whose} tokenizer.json tokenizer_config.json"
        f" --local-dir {directory}`"
    )


def _groot(
    found: FolderDescription, raw: Mapping[str, Any], kind: str, lists: FieldTable, robots_file: str
) -> None:
    directory = found.directory
    found.family = kind
    with found.finding():
        found.weights = _weights(directory)
    with found.finding():
        lists.check(raw)
    with found.finding():
        places = (directory, directory / "processor")
        place = next((p for p in places if (p / robots_file).is_file()), None)
        if place is None:
            raise CheckpointError(
                f"no {robots_file} in {directory} or its folder processor: {AGAIN}"
            )
        known = read_json(place / robots_file)
        if robots_file == "processor_config.json":
            robots = Fields(known).part("processor_kwargs").part("modality_configs").raw
            statistics = place / "statistics.json"
            if not statistics.is_file():
                raise CheckpointError(f"no statistics.json in {place}: {AGAIN}")
            trained = read_json(statistics)
            tags = sorted(name for name in robots if name in trained)
        else:
            tags = sorted(known)
        found.needs.append(
            f"embodiment: one of {', '.join(tags)}" if len(tags) > 1 else f"robot {', '.join(tags)}"
        )
    with found.finding():
        words = ("tokenizer.json", "vocab.json")  # of Eagle's, beside merges.txt
        if not any((p / n).is_file() for p in (*places, directory / "tokenizer") for n in words):
            raise CheckpointError(
                f"no tokenizer.json in {directory}: copy that of its language model there, or name"
                " its folder with the option tokenizer"
            )


def _turbovla(found: FolderDescription, raw: Mapping[str, Any]) -> None:
    directory, found.family = found.directory, "TurboVLA of its authors, converted"
    with found.finding():
        found.weights = _weights(directory)
    with found.finding():
        TURBOVLA.check(raw)
        views = ("primary", "wrist")[: Fields(raw).part("vision").whole("num_views", 2)]
        found.needs.append(_cameras(views))
        own = Fields(raw).part("action")
        state, action = own.whole("state_dim", 8), own.whole("action_dim", 7)
        found.cameras, found.state, found.actions = views, state, action
        found.needs.append(f"a state of {state} values; it gives actions of {action}")
    with found.finding():
        stats = read_json(directory / "dataset_statistics.json")
        sets = [name for name, part in stats.items() if "action" in part]
        if len(sets) > 1:
            found.needs.append(f"unnorm_key: one of {', '.join(sorted(sets))}")
    with found.finding():
        if not (directory / "tokenizer.json").is_file():
            raise CheckpointError(
                f"no tokenizer.json in {directory}: copy that of google-bert/bert-base-uncased"
                f" there: `hf download google-bert/bert-base-uncased tokenizer.json --local-dir"
                f" {directory}`"
            )


# Token policies


def _tokens(found: FolderDescription, raw: Mapping[str, Any]) -> None:
    directory = found.directory
    found.family = str(raw.get("model_type", "openvla"))
    with found.finding():
        found.weights = _weights(directory)
    minmax = False
    with found.finding():
        config = parse_config(raw)
        found.needs.append(_of_tokens(config))
        found.cameras = ("main", "wrist", "third")[: config.images]
        found.state, found.actions = config.proprio_dim, config.action_dim
        minmax = config.minmax
    with found.finding():
        path = directory / "dataset_statistics.json"
        sets = read_json(path) if path.is_file() else raw.get("norm_stats") or {}
        if not isinstance(sets, Mapping) or not sets:
            raise CheckpointError(
                f"{directory} has no action statistics: copy the dataset_statistics.json of its"
                " training run there"
            )
        if len(sets) > 1:
            found.needs.append(f"unnorm_key: one of {', '.join(sorted(sets))}")
        for key in sets:
            read_normalizer(sets, key, minmax=minmax, source=str(directory))
    with found.finding():
        words = directory / "tokenizer.json"
        if not words.is_file():
            raise CheckpointError(f"no {words}: copy the base model's tokenizer.json there")
        read_json(words)


def _of_tokens(config: ModelConfig) -> str:
    camera = ("main", "main and wrist", "main, wrist and the first of camera_roles")[
        config.images - 1
    ]
    state = f", a state of {config.proprio_dim} values" if config.proprio_dim else ""
    how = "in one pass" if config.parallel else "token by token"
    return f"cameras {camera}{state}; chunks of {config.chunk}, {how}"


# Weights


def _weights(directory: Path) -> str:
    """The number of tensors and their bytes. CheckpointError: a file is missing or not whole."""
    single, index = directory / WEIGHTS, directory / INDEX
    if single.exists():
        files = [single]
    elif index.exists():
        files = [directory / name for name in sorted(set(weight_map(index).values()))]
    else:
        files = sorted(p for p in directory.glob("*.safetensors") if "processor" not in p.name)
    if not files:
        raise CheckpointError(f"no {WEIGHTS} in {directory}: {AGAIN}")
    tensors = sum(len(header(path)) for path in files)
    size = sum(path.stat().st_size for path in files)
    return f"{size / 1e9:.2f} GB in {tensors} tensors"
