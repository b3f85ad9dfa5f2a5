"""Every promise of the models in spec/ holds in every state, and no rule can be left out."""

import ast
import importlib
import tomllib
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path

import pytest
from setuptools import find_packages

from spec.checker import Explored, Spec, explore, names_of, without
from spec.suite import SPECS

ROOT = Path(__file__).parents[2]
MODELS = sorted((ROOT / "spec").glob("*.py"))
QUICK = 30_000  # states: about two seconds


def scenarios() -> Iterator[object]:
    for spec in SPECS:
        for scenario, states in spec.scenarios.items():
            marks = [pytest.mark.slow] if states > QUICK else []
            yield pytest.param(spec, scenario, id=f"{spec.name}-{scenario}", marks=marks)


def rules() -> Iterator[object]:
    for spec in SPECS:
        for rule, off in spec.switched_off.items():
            marks = [pytest.mark.slow] if spec.scenarios[off.scenario] > QUICK else []
            yield pytest.param(spec, rule, id=f"{spec.name}-{rule}", marks=marks)


@cache  # two tests look at the same states
def explored(name: str, scenario: str) -> Explored:
    spec = next(spec for spec in SPECS if spec.name == name)
    return explore(spec.build(scenario, spec.rules()))


def described(found: Explored) -> str:
    return "\n".join([str(found.broken), *found.steps])


@pytest.mark.parametrize(("spec", "scenario"), list(scenarios()))
def test_every_promise_holds_in_every_state(spec: Spec, scenario: str) -> None:
    found = explored(spec.name, scenario)
    assert found.broken is None, described(found)
    assert found.states >= spec.scenarios[scenario], "so few states are not the whole model"


@pytest.mark.parametrize(("spec", "rule"), list(rules()))
def test_no_rule_can_be_left_out(spec: Spec, rule: str) -> None:
    scenario, promise = spec.switched_off[rule]
    found = explore(spec.build(scenario, without(spec.rules, rule)))
    assert found.broken is not None, f"nothing needs {rule}"
    assert found.broken.promise == promise, described(found)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_each_rule_is_switched_off_once(spec: Spec) -> None:
    assert set(spec.switched_off) == set(names_of(spec.rules))
    assert {off.scenario for off in spec.switched_off.values()} <= set(spec.scenarios)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_each_action_is_taken_in_some_scenario(spec: Spec) -> None:
    model = spec.build(next(iter(spec.scenarios)), spec.rules())
    taken = {each for scenario in spec.scenarios for each in explored(spec.name, scenario).taken}
    assert not set(model.STANDS_FOR) - taken, "these are never possible"
    assert set(model.STANDS_FOR) >= model.FAULTS


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_functions_that_actions_stand_for_exist(spec: Spec) -> None:
    model = spec.build(next(iter(spec.scenarios)), spec.rules())
    assert any(model.STANDS_FOR.values())
    missing = {
        name: action
        for action, names in model.STANDS_FOR.items()
        for name in names
        if not is_there(name)
    }
    assert not missing, "name the functions that do this now, and see whether the model is true"


def is_there(name: str) -> bool:
    """Whether the dotted name is a function in a module, or in a class of a module."""
    parts = name.split(".")
    first_class = next(
        (i for i, part in enumerate(parts) if part.lstrip("_")[:1].isupper()), len(parts) - 1
    )
    try:
        module = importlib.import_module(".".join(parts[:first_class]))
        return callable(reduce(getattr, parts[first_class:], module))
    except (ImportError, AttributeError):
        return False


def test_a_function_that_does_not_exist_is_missed() -> None:
    assert is_there("pybroker.transaction.txn_status.require_open")
    assert not is_there("pybroker.transaction.txn_status.require_closed")
    assert not is_there("pybroker.transaction.no_module.require_open")


def test_models_import_nothing_of_the_product() -> None:
    """They would take over what is wrong there."""
    for path in MODELS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in ("pybroker", "managed_ledger")


def test_models_are_not_part_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    include = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = find_packages(str(ROOT), include=include)
    assert "pybroker" in packages
    assert not [name for name in packages if name.partition(".")[0] == "spec"]
