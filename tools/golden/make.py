"""Writes the golden files: what the authors' own code says, at sizes that fit into a repository.

    python make.py                    the table: names, repositories and commits, packages
    python make.py NAME CLONES        one of them; CLONES holds a folder for every repository

They go to test/golden. Each name is an adapter (a script beside this one) that runs the authors'
classes where they were cloned, with weights from a seed; nothing of theirs is copied here. Each
wants an environment of its own, see test/golden/README.md: two of them have a package called
prismatic, and pins exclude each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parents[1] / "test" / "golden"
LEFT_OUT = ("tokenizer.model", "vocab.json", "merges.txt")  # large, and read by nobody here


@dataclass(frozen=True)
class Maker:
    """One adapter and what it was run with.

    ``writes``: files and folders below test/golden; a ``.tar.xz`` is packed of the folder of its
    name that the adapter leaves in ``{out}``. ``arguments``: its own; ``{out}``,
    ``{golden}`` and names of clones in braces stand for folders. ``path``: PYTHONPATH, likewise. A
    clone of another commit or another version of a package than in ``packages`` is refused.
    """

    script: str
    writes: tuple[str, ...]
    clones: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


OPENVLA = {"torch": "2.13.0", "timm": "0.9.10", "peft": "0.11.1"}
OFT = {"moojink/openvla-oft": "213c5ff", "moojink/transformers-openvla-oft": "bc339d9"}
FIXTURES = "{transformers-openvla-oft}/tests/fixtures"
GROOT = {"torch": "2.13.0", "transformers": "4.57.3", "diffusers": "0.35.1"}
EAGLE = {"torch": "2.13.0", "transformers": "4.51.3", "diffusers": "0.35.1"}
PROCESSING = {"albumentations": "1.4.18", "albucore": "0.0.17"}

MAKERS = {
    "openvla": Maker(
        "make_openvla.py",
        tuple(
            f"data/{name}.tar.xz" for name in ("openvla", "openvla-lora", "openvla-v01", "squares")
        ),
        {"openvla/openvla": "c8f03f4", "moojink/transformers-openvla-oft": "bc339d9"},
        OPENVLA,
        ("{out}", "{openvla}", FIXTURES),
    ),
    **{
        f"oft-{robot}": Maker(
            "make_oft.py",
            (f"data/oft-{robot}.tar.xz",),
            OFT,
            OPENVLA,
            ("{out}", "{openvla-oft}", FIXTURES, robot),
            ("{transformers-openvla-oft}/src",),
        )
        for robot in ("libero", "aloha")
    },
    "minivla": Maker(
        "make_minivla.py",
        ("data/minivla.tar.xz", "data/minivla-vq.tar.xz"),
        {"Stanford-ILIAD/openvla-mini": "0822b36", "jayLEE0301/vq_bet_official": "09d4851"},
        OPENVLA,
        ("{out}", "{openvla-mini}", "{vq_bet_official}"),
    ),
    "bitvla": Maker(
        "make_bitvla.py",
        ("data/bitvla.tar.xz",),
        {"ustcwhy/BitVLA": "3738a94"},
        {"torch": "2.13.0", "tokenizers": "0.21.4", "diffusers": "0.32.2"},
        ("{out}", "{BitVLA}"),
        ("{BitVLA}/transformers/src",),
    ),
    "lerobot": Maker(  # in the environment that `vla-ros lerobot setup` makes
        "flow/make.py",
        tuple(
            f"flow/{name}"
            for name in (
                "pi0",
                "pi05",
                "pi0_relative",
                "smolvla",
                "smolvla_small_images",
                "tokenizer",
            )
        ),
        packages={"torch": "2.13.0", "numpy": "2.4.6"},
        arguments=("{golden}/flow",),
    ),
    "pi0fast": Maker(  # likewise
        "make_pi0fast.py",
        ("data/pi0fast.tar.xz", "data/pi0fast-random.tar.xz"),
        packages={"lerobot": "0.6.1", "torch": "2.11.0", "transformers": "5.5.4"},
        arguments=("{out}",),
    ),
    **{
        f"smolvlm-positions-{release}": Maker(
            "flow/positions.py",
            (f"flow/positions_{release}.npz",),
            packages={"transformers": release},
        )
        for release in ("4.57.6", "5.5.4")
    },
    "evo1": Maker(
        "evo1/make.py",
        ("evo1/absent", "evo1/many", "evo1/plain", "evo1/tokenizer.json"),
        {"MINT-SJTU/Evo-1": "1bf31c4"},
        {"torch": "2.13.0", "transformers": "5.23.0", "lerobot": "0.6.1"},
        ("{golden}/evo1",),
    ),
    "act": Maker(  # in the environment that `vla-ros lerobot setup` makes
        "act/make.py",
        tuple(f"act/{name}" for name in ("one", "three", "blind_to_itself")),
        packages={"lerobot": "0.6.1", "torch": "2.11.0"},
        arguments=("{golden}/act",),
    ),
    "turbovla": Maker(
        "turbovla/make.py",
        tuple(f"turbovla/{name}" for name in ("lengths", "own", "padded", "tokenizer.json")),
        {"H-EmbodVis/TurboVLA": "2d42436"},
        {"torch": "2.13.0", "transformers": "4.57.1", "timm": "1.0.31"},
        ("{golden}/turbovla", "{TurboVLA}"),
    ),
    "groot-n1.7-head": Maker(
        "groot/make_head.py",
        ("groot/head.npz",),
        {"NVIDIA/Isaac-GR00T": "626af89"},
        GROOT,
        path=("{Isaac-GR00T}",),
    ),
    "groot-n1.7": Maker(
        "groot/make_n17.py",
        ("groot/n17.npz", "groot/n17.json"),
        {"NVIDIA/Isaac-GR00T": "626af89"},
        GROOT,
        path=("{Isaac-GR00T}",),
    ),
    "groot-n1.7-processing": Maker(
        "groot/make_processing.py",
        ("groot/processing.npz", "groot/robots"),
        {"NVIDIA/Isaac-GR00T": "626af89"},
        GROOT | PROCESSING,
        path=("{Isaac-GR00T}",),
    ),
    **{
        f"groot-{release}": Maker(
            f"groot/make_{folder}.py",
            (f"groot/{folder}",),
            {"NVIDIA/Isaac-GR00T": branch},
            EAGLE | {"albumentations": "1.4.18"},
            path=("{Isaac-GR00T}",),
        )
        for release, folder, branch in (
            ("n1.5", "n15", "n1.5-release"),
            ("n1.6", "n16", "n1.6.1-release"),
        )
    },
    "prompts": Maker(  # after `make tokenizers`
        "make_prompts.py",
        ("prompt_ids.json",),
        packages={"transformers": "4.40.1", "tokenizers": "0.19.1"},
    ),
    "safety-gate": Maker("make_gate.py", ("gate7.npz",), arguments=("{golden}/gate7.npz",)),
}


def check_clones(maker: Maker, clones: Path) -> dict[str, Path]:
    """Folder of every clone, by the repository's name; SystemExit: missing, or of another commit.

    An archive without .git passes: its commit is unknown.
    """
    found = {}
    for repository, wanted in maker.clones.items():
        name = repository.rpartition("/")[2]
        folder = found[name] = clones / name
        if not folder.is_dir():
            sys.exit(f"no {folder}: git clone https://github.com/{repository} there, at {wanted}")
        if (folder / ".git").exists():
            command = ["git", "-C", str(folder), "log", "-1", "--format=%H %D"]
            head = subprocess.run(command, capture_output=True, text=True).stdout.strip()
            if not head.startswith(wanted) and wanted not in head:
                sys.exit(f"{folder} is at {head[:7]}: check out {wanted}")
    return found


def check_packages(maker: Maker) -> None:
    """SystemExit: a package of this environment is not the one that the files were made with."""
    for package, wanted in maker.packages.items():
        try:
            found = version(package).partition("+")[0]
        except PackageNotFoundError:
            found = "not installed"
        if found != wanted:
            sys.exit(f"{package} is {found} here: pip install {package}=={wanted}")


def pack(directory: Path, target: Path) -> None:
    """A .tar.xz of a folder: the same bytes for the same content."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(info.name).name in LEFT_OUT:
            return None
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() else 0o644
        return info

    with tarfile.open(target, "w:xz", preset=9) as archive:
        archive.add(directory, directory.name, filter=plain)


def make(name: str, clones: Path) -> None:
    """Golden files of one maker; its adapter runs in a process of its own."""
    maker = MAKERS[name]
    check_packages(maker)
    folders = check_clones(maker, clones)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        named = {"out": out, "golden": GOLDEN, **folders}

        def filled(templates: tuple[str, ...]) -> list[str]:
            return [t.format_map({k: str(v) for k, v in named.items()}) for t in templates]

        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*filled(maker.path), str(GOLDEN)]),
            "HF_HUB_OFFLINE": "1",
            "EVO1_SOURCE": str(folders.get("Evo-1", "")),
        }
        command = [sys.executable, str(HERE / maker.script), *filled(maker.arguments)]
        subprocess.run(command, check=True, env=environment)
        for written in map(GOLDEN.joinpath, maker.writes):
            if written.name.endswith(".tar.xz"):
                pack(out / written.name.removesuffix(".tar.xz"), written)
            if not written.exists():
                sys.exit(f"{maker.script} did not write {written}")
            print(f"{written.relative_to(GOLDEN)}: made")


def main(arguments: list[str]) -> None:
    if not arguments:
        print(__doc__)
        for name, maker in MAKERS.items():
            clones = ", ".join(f"{repository} at {at}" for repository, at in maker.clones.items())
            packages = ", ".join(f"{package} {at}" for package, at in maker.packages.items())
            print(f"{name:<26}{maker.script}; {clones or 'no clone'}; {packages or 'no pins'}")
    elif len(arguments) == 2 and arguments[0] in MAKERS:
        make(arguments[0], Path(arguments[1]).resolve())
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
