"""The table of policies as text, for docs/policies.md: run this module to regenerate it."""

from typing import Final

from pybroker.base.config_file import camel_case
from pybroker.broker.policies.policy import Key, Level, Policy
from pybroker.broker.policies.table import POLICIES

_HEAD: Final = """# Policies

The effective value for a topic is the topic's own policy, else its namespace's, else broker.conf's.
Paths follow `/admin/v2/namespaces/{tenant}/{namespace}/` and
`/admin/v2/persistent/{tenant}/{namespace}/{topic}/`. A change takes effect at once, also on topics
in use. A policy that is off is stored and shown but has no effect.
The broker.conf keys of policies in effect can be changed while the broker runs:
`POST /admin/v2/brokers/configuration/{key}/{value}` sets one, DELETE removes it.

| policy | of a namespace | of a topic | broker.conf | acts |
|---|---|---|---|---|
"""
_NOTES: Final = """
**Turning deduplication off and on again.** Turning it off forgets what producers have sent. Turned
on, it reads the messages still in the log, including those published while it was off: copies of
these are recognised; copies of messages that are no longer stored are not.
"""


def in_words() -> str:
    return _HEAD + "".join(map(_row, POLICIES)) + _NOTES


def _row(policy: "Policy[object]") -> str:
    cells = policy.name, _path(policy.namespace), _path(policy.topic), _keys(policy), _acts(policy)
    return f"| {' | '.join(cells)} |\n"


def _path(level: Level | None) -> str:
    return "" if level is None else f"{level.verb} {level.path}"


def _keys(policy: "Policy[object]") -> str:
    if callable(policy.broker):
        return ""
    of = [policy.broker] if isinstance(policy.broker, str) else policy.broker.values()
    names = [each.name if isinstance(each, Key) else each for each in of]
    return ", ".join(camel_case(name) for name in names if isinstance(name, str))


def _acts(policy: "Policy[object]") -> str:
    if policy.off:
        return f"off: {policy.off}"
    parts = "; ".join(f"{name}: {why}" for name, why in policy.off_fields.items())
    return f"yes, except {parts}" if parts else "yes"


if __name__ == "__main__":
    print(in_words(), end="")
