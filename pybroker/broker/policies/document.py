"""The table of policies in words, for docs/policies.md: run this module to write it again."""

from typing import Final

from pybroker.base.config_file import camel_case
from pybroker.broker.policies.policy import Key, Level, Policy
from pybroker.broker.policies.table import POLICIES

_HEAD: Final = """# Policies

What holds for a topic is what was set for it, else for its namespace, else what broker.conf says.
Paths follow `/admin/v2/namespaces/{tenant}/{namespace}/` and
`/admin/v2/persistent/{tenant}/{namespace}/{topic}/`. A change takes effect at once, on topics that
are in use too. What is off is kept and shown, without an effect.
The keys of broker.conf that act can be changed while the broker runs:
`POST /admin/v2/brokers/configuration/{key}/{value}` sets one, DELETE takes it back.

| policy | of a namespace | of a topic | broker.conf | acts |
|---|---|---|---|---|
"""
_NOTES: Final = """
**Deduplication off and on again.** Switching it off forgets what producers have sent. Switched on,
it reads the messages that the log still has, also those that came while it was off: copies of these
are recognised, copies of messages that are no longer stored are not.
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
    return f"yes, but for {parts}" if parts else "yes"


if __name__ == "__main__":
    print(in_words(), end="")
