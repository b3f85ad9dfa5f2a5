"""Each service of the compose files, each image and each program of docker/ runs in a test that has
no container engine, by the same entry point; left_out.py has the exceptions and their reasons.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import left_out
import pytest
import yaml
from documents import ROOT

DOCKER: Final = ROOT / "docker"
COMPOSE: Final = ("compose.yaml", "compose.cluster.yaml")
DOCKERFILE: Final = (DOCKER / "Dockerfile").read_text()

COMMANDS: Final = "tests/app/test_docker_commands.py"
SECURE: Final = "tests/app/test_secure_profile.py"
SHOP: Final = "tests/compat/test_compose_demo.py"
CLUSTER: Final = "tests/app/test_compose_cluster.py"
PULSAR: Final = "tests/app/test_pulsar_image.py"
BOARDS: Final = "tests/admin/test_boards.py"

# Services, with the words by which their test finds their commands.
SERVICES: Final[Mapping[str, tuple[str, str]]] = {
    "broker": (COMMANDS, '"standalone"'),
    "secure-keys": (SECURE, 'words("secure-keys")'),
    "secure-broker": (SECURE, 'words("secure-broker")'),
    "secure-grants": (SECURE, 'words("secure-grants")'),
    "shop": (SHOP, '"shop"'),
    "pipeline": (SHOP, '"pipeline"'),
    "broker-1": (CLUSTER, 'startswith("broker-")'),
    "broker-2": (CLUSTER, 'startswith("broker-")'),
    "broker-3": (CLUSTER, 'startswith("broker-")'),
}
IMAGES: Final[Mapping[str, tuple[str, str]]] = {
    "broker": (COMMANDS, '"Dockerfile"'),
    "pulsar": (PULSAR, '"Dockerfile"'),
}
# The container has nothing but what `make demo` runs, and .ci/run runs that.
OF_MAKE_DEMO: Final = ("demo",)

# Programs, with the words by which their test reaches them.
PROGRAMS: Final[Mapping[str, tuple[str, str]]] = {
    "lay-out.sh": (PULSAR, '"lay-out.sh"'),
    "standalone_conf.py": (PULSAR, '"lay-out.sh"'),
    "pybroker.service": (SECURE, '"pybroker.service"'),
    "secure/keys.sh": (SECURE, '"keys.sh"'),
    "demo/Shop.java": (SHOP, '"shop"'),
    "demo/pipeline.py": (SHOP, '"pipeline"'),
    "grafana/generate.py": (BOARDS, "generate"),
    "pulsar/bin/apply-config-from-env.py": (PULSAR, "bin/apply-config-from-env.py"),
    "pulsar/bin/apply-config-from-env-with-prefix.py": (PULSAR, "-with-prefix.py"),
    "pulsar/bin/config_from_env.py": (PULSAR, "bin/apply-config-from-env.py"),
    "pulsar/bin/pulsar": (PULSAR, "bin/pulsar standalone"),
    "pulsar/bin/pulsar-admin": (PULSAR, "pulsar-admin"),
    "pulsar/bin/pulsar-client": (PULSAR, "pulsar-client"),
    "pulsar/bin/pulsar-daemon": (PULSAR, "pulsar-daemon"),
}


def services() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in COMPOSE:
        found |= yaml.safe_load((DOCKER / name).read_text())["services"]
    return found


def test_every_compose_file_is_looked_at() -> None:
    assert sorted(path.name for path in DOCKER.rglob("compose*.yaml")) == sorted(COMPOSE)


def test_every_service_runs_in_a_test_or_says_why_not() -> None:
    assert sorted([*SERVICES, *OF_MAKE_DEMO, *left_out.SERVICES]) == sorted(services())


def test_what_is_left_out_is_the_image_of_another_project() -> None:
    assert all("image" in services()[name] for name in left_out.SERVICES)


def test_every_image_runs_in_a_test() -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert sorted([*IMAGES, *OF_MAKE_DEMO]) == sorted(stages)


@pytest.mark.parametrize(
    ("test", "words"),
    sorted({*SERVICES.values(), *IMAGES.values(), *PROGRAMS.values()}),
    ids=lambda text: Path(text).name,
)
def test_the_test_takes_the_command_from_its_file(test: str, words: str) -> None:
    assert words in (ROOT / test).read_text()


def test_the_demo_s_container_runs_what_make_demo_runs() -> None:
    assert 'ENTRYPOINT ["python", "-m", "pybroker.demo"]\nCMD []\n' in DOCKERFILE
    assert not {"command", "entrypoint"} & set(services()["demo"])
    assert "\n\t$(PY) -m pybroker.demo $(ARGS)\n" in (ROOT / "Makefile").read_text()
    assert "\nmake demo\n" in (ROOT / ".ci/run").read_text()


def test_every_program_runs_in_a_test() -> None:
    programs = {
        str(path.relative_to(DOCKER))
        for path in DOCKER.rglob("*")
        if path.suffix in (".sh", ".py", ".java", ".service") or path.parent.name == "bin"
    }
    assert {name for name in programs if "__pycache__" not in name} == set(PROGRAMS)
