"""LeRobot folders that try to run something: each a change of a folder that is fine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEFORE, AFTER, CONFIG = "policy_preprocessor.json", "policy_postprocessor.json", "config.json"
Spoil = Callable[[Path, Path], None]


def change(folder: Path, name: str, **fields: Any) -> None:
    """Set fields of a JSON file."""
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def add(folder: Path, name: str, *steps: Any) -> None:
    """Append steps to a processor file."""
    found = json.loads((folder / name).read_text()).get("steps", [])
    change(folder, name, steps=[*found, *steps])


def program(canary: Path) -> str:
    return f"touch {canary}"


def module(folder: Path, canary: Path, name: str = "evil") -> Path:
    """A Python file that leaves the canary when it is run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(
        f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n"
        "class Evil:\n    def __init__(self, *a, **k): pass\n"
        "    @classmethod\n    def from_pretrained(cls, *a, **k): return cls()\n"
    )
    return path


def step_of(name: str, /, **config: Any) -> dict[str, Any]:
    return {"registry_name": name, "config": config}


def class_of(name: str, /, **config: Any) -> Spoil:
    def spoil(folder: Path, canary: Path) -> None:
        text = {k: v.format(run=program(canary)) for k, v in config.items()}
        add(folder, BEFORE, {"class": name, "config": text})

    return spoil


def with_step(step: Any, name: str = BEFORE) -> Spoil:
    return lambda folder, canary: add(folder, name, step)


def with_config(**fields: Any) -> Spoil:
    return lambda folder, canary: change(folder, CONFIG, **fields)


def _tokenizer_with_code(folder: Path, canary: Path) -> None:
    module(folder / "fast", canary)
    words = {"auto_map": {"AutoProcessor": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}}
    for name in ("processor_config.json", "tokenizer_config.json", CONFIG):
        (folder / "fast" / name).write_text(json.dumps({"processor_class": "Evil"} | words))


def _action_tokenizer(folder: Path, canary: Path) -> None:
    _tokenizer_with_code(folder, canary)
    path = str(folder / "fast")
    add(folder, BEFORE, step_of("action_tokenizer_processor", action_tokenizer_name=path))


def _tokenizer(folder: Path, canary: Path) -> None:
    _tokenizer_with_code(folder, canary)
    add(folder, BEFORE, step_of("tokenizer_processor", tokenizer_name=str(folder / "fast")))


def _elsewhere(folder: Path, canary: Path) -> None:
    other = folder.parent / "other"
    _tokenizer_with_code(other, canary)
    add(folder, BEFORE, step_of("tokenizer_processor", tokenizer_name=str(other / "fast")))


def _class_beside(folder: Path, canary: Path) -> None:
    module(folder, canary)
    add(folder, BEFORE, {"class": "evil.Evil", "config": {}})


def _link_to_a_step(folder: Path, canary: Path) -> None:
    there = folder.parent / "there.json"
    there.write_text(
        json.dumps({"steps": [{"class": "os.system", "config": {"command": program(canary)}}]})
    )
    (folder / BEFORE).unlink()
    (folder / BEFORE).symlink_to(there)


def _adapter(folder: Path, canary: Path) -> None:
    module(folder, canary)
    words = {"peft_type": "LORA", "auto_mapping": {"parent_library": "evil"}}
    (folder / "adapter_config.json").write_text(json.dumps(words))
    change(folder, CONFIG, use_peft=True)


def _template(folder: Path, canary: Path) -> None:
    (folder / "vlm").mkdir()
    piece = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    ids = list(range(100_000))
    special = {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"] * len(ids)}}
    template = {"type": "TemplateProcessing", "single": [piece] * 100, "special_tokens": special}
    content = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "post_processor": template}
    (folder / "vlm" / "tokenizer.json").write_text(json.dumps(content))


def _cycle_of_depth(folder: Path, canary: Path) -> None:
    (folder / BEFORE).write_text("[" * 100_000 + "]" * 100_000)


#: name -> the change, and a piece of the line that refuses it.
HOSTILE: dict[str, tuple[Spoil, str]] = {
    "class os.system": (class_of("os.system", command="{run}"), "'os.system'"),
    "class of the other processor": (
        with_step({"class": "os.system", "config": {"command": "true"}}, AFTER), AFTER),
    "class exec": (class_of("builtins.exec", source="{run}"), "'builtins.exec'"),
    "class subprocess": (class_of("subprocess.getoutput", cmd="{run}"), "subprocess.getoutput"),
    "class posix": (class_of("posix.system", command="{run}"), "'posix.system'"),
    "class runpy": (class_of("runpy.run_path", path_name="evil.py"), "'runpy.run_path'"),
    "class ctypes": (class_of("ctypes.CDLL", name="./evil.so"), "'ctypes.CDLL'"),
    "class webbrowser": (class_of("webbrowser.open", url="http://evil"), "'webbrowser.open'"),
    "class pip": (class_of("pip.main", args="install evil"), "'pip.main'"),
    "class torch.load": (class_of("torch.load", f="evil.pt"), "'torch.load'"),
    "class pickle": (class_of("pickle.loads", data="x"), "'pickle.loads'"),
    "class torch.hub": (class_of("torch.hub.load", repo_or_dir="evil/x"), "'torch.hub.load'"),
    "class importlib": (class_of("importlib.import_module", name="evil"), "importlib"),
    "class of LeRobot's own module": (
        class_of("lerobot.processor.pipeline.importlib.import_module", name="evil"), "names the"),
    "class beside the name": (
        with_step({"class": "os.system", "registry_name": "device_processor"}), "'os.system'"),
    "class in the folder": (_class_beside, "'evil.Evil'"),
    "no name": (with_step({"config": {}}), "names the class None"),
    "a name that is a list": (with_step({"registry_name": ["os.system"]}), "['os.system']"),
    "an unknown step": (with_step(step_of("evil_plugin_step")), "'evil_plugin_step'"),
    "a step of a gamepad": (with_step(step_of("intervention_action_processor")), "intervention"),
    "a step of a reward model": (
        with_step(step_of("reward_classifier_processor", pretrained_path="evil/x")), "reward"),
    "a step that is text": (with_step("os.system"), "is no mapping"),
    "steps that are a mapping": (
        lambda folder, canary: change(folder, BEFORE, steps={"class": "os.system"}), "no list"),
    "a field of its own": (
        with_step({"registry_name": "device_processor", "factory": "os.system"}), "factory"),
    "an action tokenizer with code": (_action_tokenizer, "action_tokenizer_processor"),
    "a tokenizer elsewhere": (_elsewhere, "outside of the folder"),
    "a tokenizer by ..": (
        with_step(step_of("tokenizer_processor", tokenizer_name="../../evil")), "outside of"),
    "trust in a step": (
        with_step(step_of("tokenizer_processor", trust_remote_code=True)), "trust_remote_code"),
    "trust deep in a step": (
        with_step(step_of("tokenizer_processor", tokenizer={"kw": [{"trust_remote_code": 1}]})),
        "trust_remote_code"),
    "trust in the config": (with_config(trust_remote_code=True), "trust_remote_code"),
    "a state file elsewhere": (
        with_step(step_of("normalizer_processor") | {"state_file": "../evil.safetensors"}),
        "state_file"),
    "a state file that is a pickle": (
        with_step(step_of("normalizer_processor") | {"state_file": "evil.pt"}), "state_file"),
    "a policy of a plug-in": (with_config(type="evil_policy"), "'evil_policy'"),
    "a policy that is a class": (with_config(type="os.system"), "'os.system'"),
    "a backbone elsewhere": (with_config(vlm_model_name="/evil/model"), "vlm_model_name"),
    "an adapter": (_adapter, "PEFT adapter"),
    "a link to a step": (_link_to_a_step, "'os.system'"),
    "a tokenizer that fills the memory": (_template, "is no tokenizer that is read"),
    "a file without end": (_cycle_of_depth, "cannot be read"),
}  # fmt: skip

#: What passes the folder's check and must be stopped while LeRobot loads it.
WHILE_LOADING: dict[str, Spoil] = {"a tokenizer with code": _tokenizer}
