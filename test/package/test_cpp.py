"""The messages in C++: rosidl's own generator, compiled, reads what Python sent, byte for byte."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "msg").is_dir():
    pytest.skip("no checkout here", allow_module_level=True)
pytest.importorskip("rosidl_generator_cpp", reason="rosidl's C++ generator is not installed")
if shutil.which("g++") is None:
    pytest.skip("no g++ here", allow_module_level=True)
rclpy = pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from rclpy.serialization import deserialize_message, serialize_message

from vla_ros.msg import ActionCommand

# What the interfaces refer to, themselves or through others.
NEEDS = ("action_msgs", "builtin_interfaces", "geometry_msgs", "service_msgs", "std_msgs")
NEEDS += ("unique_identifier_msgs",)
FASTRTPS = "rosidl_typesupport_fastrtps_cpp"

# A stranger's program: reads a command as it is on the wire, says what it read, doubles the
# action and writes it back.
PROGRAM = """
#include <cstdio>
#include <iterator>
#include <fstream>
#include <vector>
#include "fastcdr/Cdr.h"
#include "rosidl_typesupport_fastrtps_cpp/message_type_support.h"
#include "rosidl_typesupport_fastrtps_cpp/message_type_support_decl.hpp"
{includes}
#include "vla_ros/msg/detail/action_command__rosidl_typesupport_fastrtps_cpp.hpp"
using vla_ros::msg::ActionCommand;
namespace cdr = eprosima::fastcdr;

int main(int, char ** argv)
{{
  std::ifstream in(argv[1], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {{}});
  const auto handle =
    rosidl_typesupport_fastrtps_cpp::get_message_type_support_handle<ActionCommand>();
  const auto calls = static_cast<const message_type_support_callbacks_t *>(handle->data);
  ActionCommand command;
  {{
    cdr::FastBuffer buffer(bytes.data(), bytes.size());
    cdr::Cdr stream(buffer, cdr::Cdr::DEFAULT_ENDIAN, cdr::CdrVersion::XCDRv1);
    stream.read_encapsulation();
    if (!calls->cdr_deserialize(stream, &command)) {{return 1;}}
  }}
  std::printf("%s %u %lu %.6f %s", command.decoding.c_str(), unsigned(command.kind),
    command.sequence, command.stages.total_s, command.names.at(1).c_str());
  for (double & value : command.action) {{value *= 2;}}
  cdr::FastBuffer buffer;
  cdr::Cdr stream(buffer, cdr::Cdr::DEFAULT_ENDIAN, cdr::CdrVersion::XCDRv1);
  stream.set_encoding_flag(cdr::EncodingAlgorithmFlag::PLAIN_CDR);
  stream.serialize_encapsulation();
  if (!calls->cdr_serialize(&command, stream)) {{return 1;}}
  std::ofstream(argv[2], std::ios::binary).write(
    buffer.getBuffer(), stream.get_serialized_data_length());
}}
"""


def prefixes() -> list[Path]:
    paths = [*filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)), sys.prefix]
    return [Path(path) for path in dict.fromkeys(paths)]


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> Path:
    """The folder that holds vla_ros/: headers and the sources of the wire's type support."""
    from rosidl_adapter.action import convert_action_to_idl
    from rosidl_adapter.msg import convert_msg_to_idl
    from rosidl_adapter.srv import convert_srv_to_idl
    from rosidl_generator_c.cli import GenerateC
    from rosidl_generator_cpp.cli import GenerateCpp
    from rosidl_typesupport_fastrtps_cpp.cli import GenerateFastRTPSCppTypesupport

    folder = tmp_path_factory.mktemp("generated")
    made = folder / "vla_ros"
    convert = {
        "msg": convert_msg_to_idl,
        "srv": convert_srv_to_idl,
        "action": convert_action_to_idl,
    }
    idl = []
    found = os.pathsep.join(map(str, prefixes()))
    with contextlib.redirect_stdout(io.StringIO()), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMENT_PREFIX_PATH", found)
        for kind, translate in convert.items():
            for source in sorted((ROOT / kind).glob(f"*.{kind}")):
                translate(ROOT, "vla_ros", source.relative_to(ROOT), made / kind)
                idl.append(f"{made}:{kind}/{source.stem}.idl")
        shares = [prefix / "share" / name for prefix in prefixes() for name in NEEDS]
        GenerateC("c").generate("vla_ros", idl, shares, made)
        GenerateCpp("cpp").generate("vla_ros", idl, shares, made)
        GenerateFastRTPSCppTypesupport("fastrtps").generate("vla_ros", idl, shares, made)
    return folder


def compile_program(generated: Path, source: Path, out: Path) -> None:
    detail = generated / "vla_ros" / "msg" / "detail"
    parts = [source]
    for name in ("action_command", "stages"):
        parts.append(detail / "dds_fastrtps" / f"{name}__type_support.cpp")
        parts += [detail / f"{name}__{part}.c" for part in ("description", "functions")]
    # gcc, which takes .c for C and .cpp for C++
    command = ["gcc", "-O0", "-w", f"-I{generated}", *map(str, parts)]
    for prefix in prefixes():
        command += [f"-I{folder}" for folder in (prefix / "include").glob("*/")]
        command += [f"-I{prefix / 'include'}", f"-L{prefix / 'lib'}", f"-Wl,-rpath,{prefix}/lib"]
    kinds = (FASTRTPS, "rosidl_generator_c")
    libraries = [f"{name}__{kind}" for name in ("std_msgs", "builtin_interfaces") for kind in kinds]
    libraries += [FASTRTPS, "rosidl_runtime_c", "rcutils", "fastcdr", "stdc++"]
    command += [f"-l{name}" for name in libraries] + ["-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_cpp_and_python_read_the_same_command(generated, tmp_path):
    """Every generated header is included, so every interface compiles too."""
    headers = sorted(p for kind in ("msg", "srv", "action")
                     for p in (generated / "vla_ros" / kind).glob("*.hpp"))  # fmt: skip
    names = [str(p.relative_to(generated)) for p in headers if "visibility" not in p.name]
    made = len([p for k in ("msg", "srv", "action") for p in (ROOT / k).glob(f"*.{k}")])
    assert len(names) == made
    includes = "\n".join(f'#include "{name}"' for name in names)
    source = tmp_path / "program.cpp"
    source.write_text(PROGRAM.format(includes=includes))
    compile_program(generated, source, tmp_path / "program")

    sent = ActionCommand(
        check_fields=True,
        kind=ActionCommand.KIND_STOP,
        sequence=2**40 + 1,
        decoding="K=3",
        names=["x", "größe"],
        action=[0.25, -1.5],
    )
    sent.stages.total_s = 0.0125
    (tmp_path / "sent").write_bytes(serialize_message(sent))
    said = subprocess.run(
        [tmp_path / "program", tmp_path / "sent", tmp_path / "answer"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == f"K=3 {ActionCommand.KIND_STOP} {2**40 + 1} 0.012500 größe"
    answer = deserialize_message((tmp_path / "answer").read_bytes(), ActionCommand)
    assert list(answer.action) == [0.5, -3.0]
    answer.action = sent.action
    assert answer == sent
