"""Checks Python, the packages that pybroker needs, and Java, which only Spark needs."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.doctor.finding import Finding, Level

_OLDEST_PYTHON: Final = (3, 11)
_OLDEST_JAVA: Final = 17
_JAVA_TIMEOUT_S: Final = 20.0
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?\s*([^;]*)(?:;\s*(.*))?")
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
_BOUND: Final = re.compile(r"(>=|<=|<|>|==|!=|~=)\s*([\d.]+)")
# A package of another project, whose modules would hide pybroker's.
_RIVAL: Final = "lib-pybroker"


def check_python() -> Finding:
    text = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        return Finding("Python", Level.ERROR, text, "install Python 3.11 or newer")
    return Finding("Python", Level.OK, text)


def check_rival() -> list[Finding]:
    """Looks for the other project's package, whose modules have the same import name."""
    try:
        found = metadata.version(_RIVAL)
    except metadata.PackageNotFoundError:
        return []
    return [
        Finding(
            _RIVAL,
            Level.ERROR,
            f"{found} is installed, another project whose files overwrite the package pybroker",
            f"pip uninstall {_RIVAL}, then pip install --force-reinstall --no-deps pybroker",
        )
    ]


def check_packages(config: BrokerConfig) -> list[Finding]:
    """One finding for each package that the broker always needs, and one for each extra."""
    try:
        requirements = metadata.requires("pybroker") or []
    except metadata.PackageNotFoundError:
        return [Finding("packages", Level.WARNING, "pybroker is not installed", "pip install .")]
    always: list[str] = []
    extras: dict[str, list[str]] = {}
    for text in requirements:
        extra = _EXTRA.search(text)
        (always if extra is None else extras.setdefault(extra[1], [])).append(text)
    needed = {"security"} if config.authentication_enabled else set()
    return [_check_package(text) for text in always] + [
        _check_extra(extra, texts, extra in needed)
        for extra, texts in sorted(extras.items())
        if extra in ("compression", "encryption", "otel", "security", "spark")
    ]


def _check_package(text: str) -> Finding:
    name, _ = _parsed(text)
    trouble = _trouble(text)
    if trouble:
        return Finding(name, Level.ERROR, trouble, f"pip install --upgrade {name}")
    return Finding(name, Level.OK, metadata.version(name))


def _check_extra(extra: str, requirements: list[str], is_needed: bool) -> Finding:
    name = f"extra {extra}"
    trouble = [found for text in requirements if (found := _trouble(text))]
    if not trouble:
        return Finding(name, Level.OK, "installed")
    level = Level.ERROR if is_needed else Level.ABSENT
    why = (
        "authenticationEnabled=true needs it: " if is_needed else "for the features that need it: "
    )
    return Finding(name, level, "; ".join(trouble), f"{why}pip install 'pybroker[{extra}]'")


def _parsed(requirement: str) -> tuple[str, str]:
    found = _REQUIREMENT.match(requirement)
    assert found is not None, requirement
    return found[1], found[2]


def _trouble(requirement: str) -> str:
    """The reason why the requirement is not met; empty if it is."""
    name, bounds = _parsed(requirement)
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    if all(_meets(installed, *bound) for bound in _BOUND.findall(bounds)):
        return ""
    return f"{name} {installed} is installed, {bounds.strip()} is needed"


def _meets(installed: str, operator: str, bound: str) -> bool:
    """Compares release numbers only: pybroker's own bounds use nothing else."""
    have, want = _numbers(installed), _numbers(bound)
    if operator == ">=":
        return have >= want
    if operator == "<":
        return have < want
    return have == want if operator == "==" else True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def check_java() -> Finding:
    """Checks Java. Only Spark needs it, so nothing here prevents a broker from starting."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = (
        "only PySpark needs it: install Java 17 or newer, and set JAVA_HOME if there are several"
    )
    if java is None or not os.access(java, os.X_OK):
        return Finding("Java", Level.ABSENT, "not installed", advice)
    try:
        ended = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Java", Level.WARNING, f"{java} does not run: {error}", advice)
    said = ended.stderr + ended.stdout
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        return Finding("Java", Level.WARNING, f"{java} does not print its version", advice)
    major = int(found[2] or 0) if found[1] == "1" else int(found[1])
    level = Level.OK if major >= _OLDEST_JAVA else Level.WARNING
    return Finding("Java", level, f"{major} at {java}", "" if level is Level.OK else advice)
