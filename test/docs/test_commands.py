"""Every command that the documentation shows is held to the code: verbs, options, values,
parameters, topics, launch arguments, targets; or it says what it needs. `make test-docs` runs those
that can run here.
"""

from __future__ import annotations

import ast
import re
import shlex
import textwrap

import pytest
import yaml

from docs_run.plan import CHAINS
from support.docs import check, declared, ros2
from support.docs.pages import ROOT, Block, blocks, blocks_of, documented, inline
from support.docs.shell import Command, commands, simple

BLOCKS = [block for page in documented() for block in blocks(page)]
LANGUAGES = {"", "text", "yaml", "toml", "python", "cpp", "json"}


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def snippets(*languages: str):
    """Parametrise with the blocks of these languages, by where they stand."""
    found = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", found, ids=lambda block: block.where)


def command(line: str, needs: str = "") -> Command:
    (words,) = simple(line)
    return Command("page:1", words, needs=needs)


def test_every_block_is_of_a_language_that_somebody_checks():
    strange = [f"{b.where}: {b.language}" for b in BLOCKS if b.language not in LANGUAGES]
    assert not strange, "a block without a language is a shell's, output is ```text"


@snippets("")
def test_the_commands_of_a_block_are_true(block):
    try:
        found = commands(block)
    except ValueError as error:
        pytest.fail(f"{block.where}: no shell would read this: {error}")
    assert found, f"{block.where}: no command; call the block ```text"
    wrong = [f"{one.where}: {one.text}: {said}" for one in found if (said := check.problem(one))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", documented())
def test_commands_in_running_text_are_true(page):
    wrong = []
    for line, text in inline(page):
        if not re.match(r"(\.venv/bin/)?(vla-ros|make) ", text):
            continue
        for words in simple(text):
            said = check.inline_problem(Command(f"{page}:{line}", words, needs="ROS 2"))
            wrong += [f"{page}:{line}: {text}: {said}"] if said else []
    assert not wrong, "\n".join(wrong)


@snippets("yaml")
def test_yaml_is_of_parameters_that_there_are(block):
    said = ros2.parameter_file(block.text)
    assert not said, f"{block.where}: {said}"
    content = yaml.safe_load(block.text)
    if "nodes" in content:
        for name, body in content["nodes"].items():
            files = body.get("parameter_files", [])
            assert all((ROOT / "config" / file).is_file() for file in files), (
                f"{block.where} {name}"
            )


@snippets("toml")
def test_toml_can_be_read(block):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    assert tomllib.loads(block.text)


@snippets("python", "cpp")
def test_a_piece_of_a_program_is_of_a_file_that_the_tests_run(block):
    """Not the text of a page alone: docs/how-to/*.py and the listener are run by tests."""
    if block.language == "python":
        ast.parse(block.text)
    files = [f for f in (ROOT / "docs/how-to").rglob("*") if f.suffix in (".py", ".cpp")]
    wanted = squeezed(block.text)
    assert any(wanted in squeezed(file.read_text(encoding="utf-8")) for file in files), (
        f"{block.where}: in no file under docs/how-to"
    )


def squeezed(text: str) -> str:
    """Lines without indentation: a method is shown without its class."""
    return "\n".join(line.strip() for line in text.splitlines())


def test_programs_in_the_shell_compile():
    for block in of(""):
        for code in re.findall(r'python3? -c "([^"]+)"', block.text):
            ast.parse(textwrap.dedent(code))


def test_the_reasons_are_used():
    """A reason that nobody gives any more is taken off the list."""
    assert {block.needs for block in BLOCKS} - {""} <= set(check.NEEDS)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vla-ros eval --episodes 2 --no-ros", ""),
        ("vla-ros eval --episode-count 2", "unrecognized arguments"),
        ("vla-ros eval --episodes many", "invalid int value"),
        ("vla-ros fly", "invalid choice: 'fly'"),
        ("vla-ros demo --task pick_pink_cube", "no task pick_pink_cube"),
        ("vla-ros verify --checkpoint shipped:desk", "there is no shipped:desk"),
        ("vla-ros up sim -p policy.control_rate=10", "no parameter 'control_rate'"),
        ("vla-ros up sim -p arm.speed=10", "no node 'arm'"),
        ("vla-ros up sim -p policy.stale_action=dance", "'dance', must be one of"),
        ("vla-ros up policy -r picture=/camera", "no node here has a topic or service 'picture'"),
        ("make demo TASK=stack_red_on_red", "no task stack_red_on_red"),
        ("make demo ARGS='--fast'", "unrecognized arguments"),
        ("make coffee", "no target coffee"),
        ("make demo SPEED=3", "no variable SPEED"),
        ("ros2 launch vla_ros sim.launch.py policy:=scripted", ""),
        ("ros2 launch vla_ros sim.launch.py speed:=3", "has no argument speed"),
        ("ros2 launch vla_ros sim.launch.py mode:=fast", "takes realtime, lockstep"),
        ("ros2 launch vla_ros arm.launch.py", "no launch/arm.launch.py"),
        ("ros2 launch vla_ros policy.launch.py parameters:='{joints: [a]}'", "parameter joints"),
        ("ros2 run vla_ros recorder_node --ros-args -p folder:=a", "no parameter folder"),
        ("ros2 topic echo /monitor/report --field clock_offset", "no message has a field"),
        ("ros2 topic echo /monitor/rapport", "nothing of vla_ros is called /monitor/rapport"),
        ("ros2 topic pub /instruction std_msgs/msg/String '{text: go}'", "no field text"),
        ("ros2 service call /policy/halt std_srvs/srv/Trigger", "called /policy/halt"),
        ("ros2 bag info run1", "needs: ROS 2"),
        ("pip install '.[sim,wings]'", "no extra wings"),
        ("pip install flask", "needs: network"),
        ("python3 requirements/fly.py", "there is no requirements/fly.py"),
        ("python3 requirements/install.py --fast", "has no --fast"),
        ("docker run --rm vla_ros", "needs: docker"),
        ("vla-ros up sim --view -p view.host=::1", ""),
        ("vla-ros up sim --view -p view.hostess=::1", "view"),
        ("rm -rf /", "nobody holds it to anything"),
    ],
)
def test_a_wrong_command_is_found(line, said):
    found = check.problem(command(line))
    assert said in found if said else found == ""


def test_a_reason_must_be_one_of_the_list():
    assert "none of" in check.problem(command("ssh robot", "patience"))
    assert check.problem(command("ssh robot", "another machine")) == ""


def test_a_reason_excuses_nothing_that_can_be_checked():
    assert "unrecognized" in check.problem(command("vla-ros eval --gpu", "GPU"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vla-ros eval --no-ros --checkpoint ... --execution sync", ""),
        ("vla-ros convert --base", ""),
        ("vla-ros convert --bass", "no option --bass"),
        ("vla-ros convey", "no verb convey"),
        ("vla-ros libero setup --assets hub", ""),
    ],
)
def test_a_part_of_a_command_is_checked_as_far_as_it_goes(line, said):
    found = check.inline_problem(command(line))
    assert said in found if said else found == ""


def test_a_block_is_taken_apart():
    page = '<!-- needs: GPU -->\n\n```\nC="--a 1"\nA=2 x $C \\\n    b && y  # z\n```\n'
    page += "```yaml\na: 1\n```\n"
    first, second = blocks_of("page", page)
    assert (first.needs, first.where, second.needs, second.language) == (
        "GPU",
        "page:3",
        "",
        "yaml",
    )
    assert commands(first) == [
        Command("page:5", ("x", "--a", "1", "b"), ("A=2",), "GPU"),
        Command("page:5", ("y",), (), "GPU"),
    ]


def test_the_declarations_are_read():
    assert {"policy", "checkpoint", "image", "mode", "task"} <= set(
        declared.launch_arguments("libero.launch.py")
    )
    assert declared.interface("vla_ros/action/ExecuteInstruction")[:1] == ("instruction",)
    assert "control_rate_hz" in declared.parameters("policy")
    assert declared.is_name("policy/twist") and not declared.is_name("policy/arm")


def test_what_is_run_is_what_the_pages_say():
    """The plan of `make test-docs` has no command that a page has no more."""
    shown: dict[str, set[str]] = {}
    for page in documented():
        found = {
            one.text for block in blocks(page) if not block.language for one in commands(block)
        }
        found |= {shlex.join(words) for _, text in inline(page) for words in simple_or_none(text)}
        shown[page] = found
    gone = [
        f"{step.page}: {step.command}"
        for steps in CHAINS.values()
        for step in steps
        if step.page and shlex.join(simple(step.command)[0]) not in shown[step.page]
    ]
    assert not gone, "docs_run/plan.py runs what is not documented:\n" + "\n".join(gone)


def simple_or_none(text: str) -> list[tuple[str, ...]]:
    """The commands of a piece of code in running text; none where it is no shell's."""
    try:
        return simple(text)
    except ValueError:
        return []
