"""The table of policies as text, for docs/policies.md: run this module to regenerate it."""

from typing import Final

from pybroker.base.configuration.config_file import camel_case
from pybroker.broker.policies.policy import Key, Level, Policy
from pybroker.broker.policies.table import POLICIES

_HEAD: Final = """# Policies

A topic's own policy takes precedence over its namespace's policy, which takes precedence over
broker.conf. A change takes effect at once, also on topics in use.

Set a policy with the request in the table. Its path is relative to
`/admin/v2/namespaces/{tenant}/{namespace}/` for a namespace, and to
`/admin/v2/persistent/{tenant}/{namespace}/{topic}/` for a topic. GET of the same path shows the
policy (of `backlogQuotaMap` for backlog quotas), and DELETE removes it. As with Apache Pulsar, a
few policies of namespaces have no DELETE.

`POST /admin/v2/brokers/configuration/{key}/{value}` changes a key of broker.conf while the broker
runs. DELETE of `/admin/v2/brokers/configuration/{key}` restores the configured value.

Policies that have no effect are stored and shown, for compatibility with Apache Pulsar's tools.

| policy | namespace | topic | broker.conf | has an effect |
|---|---|---|---|---|
"""
_NOTES: Final = """
## Turning deduplication off and on again

When you turn deduplication off, the broker forgets the producers' sequence ids. When you turn it on
again, the broker reads them from the messages in the log, including messages that were published
while it was off. It recognises copies of these messages, but not copies of messages that are no
longer stored.

## Compaction and deleted keys

A message without a value deletes its key. Compaction keeps it for a while, because a reader that
already knows the key, and is behind or away, would otherwise never learn that it was deleted:

- for the time of the policy `compactionDeleteRetention`, in seconds, after the first compaction
  that included it: a day, unless you set the policy of the topic or namespace, or
  `topicCompactionDeleteRetentionSeconds`. It may be a twentieth longer. With 0 compaction does not
  keep such messages on account of their age, as in Apache Pulsar; with -1 it keeps them for ever;
- and then until every durable subscription has acknowledged everything up to it.

The first compaction after that drops it. Readers, and consumers with `readCompacted`, receive these
messages, with an empty value; TableViews apply them. A reader or TableView that was away for longer
than that must begin again at the earliest message, without what it knew.
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
        return f"no: {policy.off}"
    by_reason: dict[str, list[str]] = {}
    for name, why in policy.off_fields.items():
        by_reason.setdefault(why, []).append(name)
    parts = "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
    return f"yes, except {parts}" if parts else "yes"


if __name__ == "__main__":
    print(in_words(), end="")
