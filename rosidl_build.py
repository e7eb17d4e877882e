"""Build the interfaces in msg/, srv/ and action/ from setup.py, without CMake.

It calls the generator classes that rosidl_generate_interfaces() calls, compiles their C into
the libraries that rosidl looks up by name, and puts the Python modules beside them:

    vla_ros/msg/*.py, vla_ros/srv/*.py, vla_ros/action/*.py
    vla_ros/libvla_ros__rosidl_generator_c.so
    vla_ros/libvla_ros__rosidl_typesupport_introspection_c.so
    vla_ros/libvla_ros__rosidl_typesupport_fastrtps_c.so
    vla_ros/vla_ros_s__rosidl_typesupport_c.so          (the module rclpy imports)

`python setup.py build_ext --inplace` does the same into the checkout, for development.
C++ and CMake exports come of `colcon build` (CMakeLists.txt): who writes a node in C++ has a
ROS 2 install. It needs the rosidl of ROS 2 Kilted, or a late Jazzy.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

GENERATOR = "rosidl_generator_c"
FASTRTPS = "rosidl_typesupport_fastrtps_c"
INTROSPECTION = "rosidl_typesupport_introspection_c"
TYPESUPPORT = "rosidl_typesupport_c"
OUT = Path("build/rosidl")
MADE = OUT / "made.json"  # what is in OUT, and from what
KINDS = ("msg", "srv", "action")


def _add_ros_to_path() -> None:
    """Find the generators where pip's isolated build hides them."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for prefix in filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)):
        sys.path += [str(p) for p in Path(prefix).glob(f"lib/{version}/site-packages")]
    sys.path.append(sysconfig.get_path("purelib"))


def generators_found() -> bool:
    """True where ROS 2's message generators can be imported."""
    if importlib.util.find_spec("rosidl_generator_py") is None:
        _add_ros_to_path()
    return importlib.util.find_spec("rosidl_generator_py") is not None


def _ros_prefixes() -> list[Path]:
    """Prefixes whose include/, lib/ and share/ hold ROS 2, for us and for the generators."""
    spec = importlib.util.find_spec("rosidl_generator_py") if generators_found() else None
    if spec is None or spec.origin is None:
        raise SystemExit(
            "the ROS 2 message generators are missing: source a ROS 2 install (setup.bash), or"
            " use a Python that has ROS wheels (3.10 to 3.13, x86_64 Linux) with pip install"
            " '.[ros]'"
        )
    prefixes = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    prefixes.append(str(Path(spec.origin).resolve().parents[4]))
    prefixes = [p for p in dict.fromkeys(prefixes) if p]
    os.environ["AMENT_PREFIX_PATH"] = os.pathsep.join(prefixes)
    return [Path(p) for p in prefixes]


@dataclass(frozen=True, slots=True)
class Interfaces:
    """The interfaces of one package: names that setup() needs before anything is generated."""

    package: str
    dependencies: tuple[str, ...]  # packages that the interfaces refer to

    def sources(self, kind: str) -> list[Path]:
        return sorted(Path(kind).glob(f"*.{kind}"))

    def definitions(self) -> list[str]:
        return [str(path) for kind in KINDS for path in self.sources(kind)]

    def idl(self, kind: str) -> list[str]:
        """Generated interface descriptions, which `ros2 interface` and type hashes use."""
        names = [OUT / self.package / kind / p.stem for p in self.sources(kind)]
        return [f"{name}{suffix}" for name in names for suffix in (".idl", ".json")]

    def data_files(self) -> list[tuple[str, list[str]]]:
        """What goes into share/: definitions and the entries of the ament index."""
        installed, index = [], []
        for kind in KINDS:
            both = [str(p) for p in self.sources(kind)] + self.idl(kind)
            installed.append((f"share/{self.package}/{kind}", both))
            index += [f"{kind}/{Path(p).name}" for p in both if not p.endswith(".json")]
        for resource, text in (("packages", ""), ("rosidl_interfaces", "\n".join(sorted(index)))):
            marker = OUT.parent / "ament_index" / resource / self.package
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.write_text(text)
            target = f"share/ament_index/resource_index/{resource}"
            installed.append((target, [str(marker)]))
        return installed

    def extensions(self) -> list[Extension]:
        """The libraries in link order; BuildInterfaces fills in what only rosidl knows."""
        own = f"lib{self.package}__"
        link = {
            f"{own}{GENERATOR}": self._libraries((), (GENERATOR,), "rosidl_runtime_c"),
            f"{own}{INTROSPECTION}": self._libraries((GENERATOR,), (INTROSPECTION,), INTROSPECTION),
            f"{own}{FASTRTPS}": self._libraries((GENERATOR,), (FASTRTPS,), FASTRTPS, "fastcdr"),
            f"{self.package}_s__{TYPESUPPORT}": self._libraries(
                (GENERATOR, FASTRTPS, INTROSPECTION),
                ("rosidl_generator_py", TYPESUPPORT),
                TYPESUPPORT,
                "rosidl_runtime_c",
            ),
        }
        return [
            Extension(
                f"{self.package}.{name}",
                sources=[],
                runtime_library_dirs=["$ORIGIN", "$ORIGIN/../../.."],
                extra_compile_args=["-O2", "-w"],
                # rosidl opens type supports by soname, so each must be loaded with the module.
                extra_link_args=["-Wl,--no-as-needed", f"-Wl,-soname,{name}.so"]
                + [f"-l{library}" for library in libraries],
            )
            for name, libraries in link.items()
        ]

    def _libraries(self, own: tuple[str, ...], kinds: tuple[str, ...], *more: str) -> list[str]:
        return [
            *(f"{self.package}__{kind}" for kind in own),
            *(f"{dependency}__{kind}" for dependency in self.dependencies for kind in kinds),
            *more,
        ]

    def generate(self, prefixes: list[Path]) -> dict[str, list[str]]:
        """Translate the interfaces to C and Python; C sources by library name."""
        from rosidl_adapter.action import convert_action_to_idl
        from rosidl_adapter.msg import convert_msg_to_idl
        from rosidl_adapter.srv import convert_srv_to_idl
        from rosidl_generator_c.cli import GenerateC
        from rosidl_generator_py.cli import GeneratePython
        from rosidl_typesupport_c.cli import GenerateCTypesupport
        from rosidl_typesupport_fastrtps_c.cli import GenerateFastRTPSCTypesupport
        from rosidl_typesupport_introspection_c.cli import GenerateIntrospectionCTypesupport

        root = OUT.absolute() / self.package
        shutil.rmtree(OUT, ignore_errors=True)
        idl = []
        converters = (convert_msg_to_idl, convert_srv_to_idl, convert_action_to_idl)
        for kind, convert in zip(KINDS, converters, strict=True):
            for source in self.sources(kind):
                convert(Path.cwd(), self.package, source, root / kind)
                idl.append(f"{root}:{kind}/{source.stem}.idl")
        shares = [prefix / "share" / name for prefix in prefixes for name in self.dependencies]
        supports = [FASTRTPS, INTROSPECTION]

        def run(generator, folder: Path = root) -> list[str]:
            made = generator.generate(self.package, idl, shares, folder)
            return [os.path.relpath(f) for f in made if str(f).endswith((".c", ".cpp"))]

        own = f"lib{self.package}__"
        # The C and the introspection generators write files of the same name: two folders.
        elsewhere = OUT.absolute() / "introspection" / self.package
        return {
            f"{own}{GENERATOR}": run(GenerateC("c")),
            f"{own}{INTROSPECTION}": run(GenerateIntrospectionCTypesupport("i"), elsewhere),
            f"{own}{FASTRTPS}": run(GenerateFastRTPSCTypesupport("f")),
            f"{self.package}_s__{TYPESUPPORT}": [
                *run(GenerateCTypesupport("t", typesupport_implementations=supports)),
                *run(GeneratePython("p", typesupport_implementations=[TYPESUPPORT])),
            ],
        }


class BuildInterfaces(build_ext):
    """build_ext that generates the sources first and puts the Python modules beside the rest."""

    interfaces: Interfaces  # set by setup.py

    def run(self) -> None:
        import numpy

        prefixes = _ros_prefixes()
        sources = self._generate_if_changed(prefixes)
        for extension in self.extensions:
            extension.sources = sources[extension.name.split(".")[-1]]
        self.include_dirs += [str(OUT.absolute()), str(OUT.absolute() / "introspection")]
        for prefix in prefixes:
            self.include_dirs += [str(prefix / "include")]
            self.include_dirs += [str(d) for d in (prefix / "include").glob("*/")]
        self.include_dirs.append(numpy.get_include())
        self.library_dirs += [str(p / "lib") for p in prefixes]
        self.library_dirs.append(os.path.join(self.build_lib, self.interfaces.package))
        super().run()
        self._copy_modules(Path(self.build_lib))
        if self.inplace:
            self._copy_modules(Path())

    def _generate_if_changed(self, prefixes: list[Path]) -> dict[str, list[str]]:
        """C sources by library name. Unchanged interfaces keep theirs, and are not recompiled."""
        inputs = [Path(__file__), *map(Path, self.interfaces.definitions())]
        text = [sys.version, *map(str, prefixes), *(path.read_text() for path in inputs)]
        digest = hashlib.sha256("\0".join(text).encode()).hexdigest()
        with contextlib.suppress(OSError, ValueError, KeyError):
            made = json.loads(MADE.read_text())
            if made["digest"] == digest and not self.force:
                return dict(made["sources"])
        with contextlib.redirect_stdout(io.StringIO()):  # its errors are exceptions
            sources = self.interfaces.generate(prefixes)
        MADE.write_text(json.dumps({"digest": digest, "sources": sources}))
        return sources

    def build_extension(self, ext: Extension) -> None:
        """Compile the sources of one library at the same time: there are many small ones."""
        compile_one = self.compiler.compile

        def compile_all(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                parts = pool.map(lambda source: compile_one([source], **options), sources)
                return [path for part in parts for path in part]

        self.compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_one

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"  # rosidl knows no ABI suffix

    def get_outputs(self) -> list[str]:
        modules = [str(path) for path in self._modules(Path(self.build_lib))]
        return [*super().get_outputs(), *modules]

    def _modules(self, root: Path) -> list[Path]:
        package = root / self.interfaces.package
        return [path for kind in KINDS for path in sorted((package / kind).glob("*.py"))]

    def _copy_modules(self, root: Path) -> None:
        for kind in KINDS:
            shutil.rmtree(root / self.interfaces.package / kind, ignore_errors=True)
        for module in self._modules(OUT):
            target = root / module.relative_to(OUT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(module, target)
