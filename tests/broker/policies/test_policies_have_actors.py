"""Each row of the table has code that acts on it: no policy can be set without effect.

A row is acted upon where its constant is read, outside the admin API; a part of a record where its
name is read. A policy that is off says why, and no code reads it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rows import check_each
from syntax import syntax_tree

import pybroker
from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.policies import kept, table
from pybroker.broker.policies.document import in_words
from pybroker.broker.policies.policy import Policy
from pybroker.broker.policies.table import POLICIES

ROOT: Final = Path(pybroker.__file__).parent
NOT_ACTING: Final = (
    "policies/table.py",
    "policies/auto_scale.py",
    "policies/kept.py",
    "policies/shapes.py",
    "policies/policy.py",
)
CONSTANTS: Final = {
    id(value): name
    for name, value in (vars(table) | vars(kept)).items()
    if isinstance(value, Policy)
}


def acting_modules() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*.py")):
        inside = path.relative_to(ROOT).as_posix()
        if inside.split("/")[0] in ("broker", "server") and not inside.endswith(NOT_ACTING):
            yield path


def read_words() -> set[str]:
    """Names that are read, and string literals."""
    found: set[str] = set()
    for path in acting_modules():
        for node in ast.walk(syntax_tree(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def parts(policy: Policy[Any]) -> list[str]:
    """All fields of a policy whose value is a record."""
    value = policy.of_broker(BrokerConfig())
    known = {"subscriptionPolicies": ["dispatchRate"], "backlogQuota": ["limitSize", "limitTime"]}
    if policy.name in known:
        return known[policy.name]
    named = dict.fromkeys([*(value if isinstance(value, dict) else ()), *policy.off_fields])
    return list(named)


def test_each_policy_has_an_actor_or_says_why_not() -> None:
    words = read_words()

    def check(policy: Policy[Any]) -> None:
        constant = CONSTANTS.get(id(policy), f"KEPT: {policy.name}")
        assert bool(policy.off) is not (constant in words), policy.off or "nobody acts on it"
        if not policy.off:
            for part in parts(policy):
                assert (part in policy.off_fields) is not (part in words), part

    check_each(POLICIES, check, name=lambda policy: policy.name)


def test_the_document_is_what_the_table_says() -> None:
    document = ROOT.parent / "docs/policies.md"
    assert document.read_text() == in_words(), (
        "write it again: python -m pybroker.broker.policies.document > docs/policies.md"
    )
