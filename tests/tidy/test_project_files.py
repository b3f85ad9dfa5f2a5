"""README, Makefile, changelog, pyproject and the generated module agree with each other."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc
from packaging.requirements import Requirement
from packaging.version import Version

from pybroker.wire import pulsar_api_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = [
    Requirement(text) for group in PROJECT["optional-dependencies"].values() for text in group
]
HEAVY = {"pyspark", "pyarrow", "pandas", "pytest", "pulsar-client", "grpcio-tools"}


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_generated_module_has_the_messages_of_the_proto_file(tmp_path: Path) -> None:
    """Whatever protoc is installed; test_make_targets.py compares each byte with `make proto`."""
    written = tmp_path / "described"
    assert protoc.main(["", f"-I{ROOT}", f"--descriptor_set_out={written}", "PulsarApi.proto"]) == 0
    (described,) = FileDescriptorSet.FromString(written.read_bytes()).file
    for each in fields_of(described.message_type):
        each.ClearField("json_name")  # which the generated module leaves out
    assert FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb) == described


def fields_of(messages: Iterable[DescriptorProto]) -> Iterator[FieldDescriptorProto]:
    for message in messages:
        yield from message.field
        yield from fields_of(message.nested_type)


def test_protobuf_is_new_enough_for_the_generated_module() -> None:
    code = (ROOT / "pybroker/wire/pulsar_api_pb2.py").read_text()
    found = re.search(r"Protobuf Python Version: (\S+)", code)
    assert found is not None
    protobuf = next(need for need in RUNTIME if need.name == "protobuf")
    lowest = min(Version(s.version) for s in protobuf.specifier if s.operator == ">=")
    assert lowest >= Version(found[1])


def test_every_command_in_the_readme_is_in_the_makefile() -> None:
    commands = set(re.findall(r"^\s*make ([a-z-]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= commands
    for command in sorted(commands):
        assert re.search(rf"^{command}:", MAKEFILE, re.MULTILINE), f"no target for make {command}"


def test_every_make_target_of_the_documents_is_in_the_makefile() -> None:
    for document in (ROOT / "docs").rglob("*.md"):
        for command in re.findall(r"^\s*make ([a-z-]+)", document.read_text(), re.MULTILINE):
            assert re.search(rf"^{command}:", MAKEFILE, re.MULTILINE), f"{document.name}: {command}"


def test_the_extra_all_has_what_users_need() -> None:
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert {"compression", "encryption", "security", "spark"} <= Requirement(everything).extras


def test_ci_runs_the_commands_of_the_readme() -> None:
    in_readme = re.findall(r"^make [a-z-]+", README, re.MULTILINE)
    in_ci = [
        line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("make")
    ]
    assert in_ci == in_readme == ["make demo", "make test"]


@pytest.mark.parametrize("block", python_blocks(README))
def test_python_in_the_readme_compiles(block: str) -> None:
    compile(block, "README.md", "exec")


def test_files_that_the_readme_links_to_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_llms_txt_names_each_page_and_nothing_else() -> None:
    named = re.findall(r"^- \[[^\]]+\]\(([\w/.-]+)\): \S", (ROOT / "llms.txt").read_text(), re.M)
    only_include_others = {"index", "architecture", "changelog"}
    files = {page.stem: page for page in (ROOT / "docs").glob("*.md")}
    pages = {f"docs/{files[stem].name}" for stem in files.keys() - only_include_others}
    assert sorted(named) == sorted({"ARCHITECTURE.md", "docs/internals/index.md", *pages})


@pytest.mark.parametrize("need", RUNTIME, ids=str)
def test_what_every_user_installs_has_both_bounds(need: Requirement) -> None:
    operators = {specifier.operator for specifier in need.specifier}
    assert {">=", "<"} <= operators


@pytest.mark.parametrize("need", [need for need in EXTRAS if not need.extras], ids=str)
def test_what_an_extra_installs_has_a_lower_bound(need: Requirement) -> None:
    operators = {specifier.operator for specifier in need.specifier}
    assert operators & {">=", "==", "<"}


def test_the_broker_alone_installs_nothing_heavy() -> None:
    assert not HEAVY & {need.name for need in RUNTIME}


def test_the_changelog_knows_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{PROJECT['version']}]" in changelog or "## [Unreleased]" in changelog


def test_the_changelog_is_for_users_and_has_each_section_once() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert len(lines) < 450, "say what a user notices, in a line each; was an old text merged back?"
    headings = [line for line in lines if line.startswith("## ")]
    assert len(set(headings)) == len(headings)
    unreleased = lines[lines.index(headings[0]) : lines.index(headings[1])]
    parts = [line for line in unreleased if line.startswith("### ")]
    assert len(set(parts)) == len(parts)
