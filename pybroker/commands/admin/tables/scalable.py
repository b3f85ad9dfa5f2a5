"""Commands for scalable topics. Source: Apache Pulsar 5's `pulsar-admin scalable-topics`; those for
entry buckets, auto-scale policies and subscriptions are ours.
"""

from argparse import Namespace
from typing import Any, Final

from pybroker.base.names import SEGMENT, TopicName
from pybroker.commands.admin.command import Command, filled
from pybroker.commands.admin.rest import Rest
from pybroker.commands.admin.tables.policies import AUTO_SCALE_FIELDS, auto_scale, value

_PLACE: Final = "<topic>"
_T: Final = "scalable/{bare}"
_S: Final = _T + "/subscriptions/{subscription}"


def _list(rest: Rest, options: Namespace) -> Any:
    """The HTTP client of this command sends a parameter once, so the others are compared here."""
    names = rest.ask("GET", filled("scalable/{namespace}", options))
    wanted = dict(options.property or ())
    if not wanted:
        return names
    return [name for name in names if wanted.items() <= _properties(rest, name).items()]


def _properties(rest: Rest, name: str) -> dict[str, str]:
    found = rest.ask("GET", filled(_T, Namespace(topic=name)))
    properties: dict[str, str] = found["properties"]
    return properties


def _segment_stats(rest: Rest, options: Namespace) -> Any:
    name = TopicName.parse(options.segment)
    if name.domain != SEGMENT:
        raise ValueError(
            f"{options.segment!r} is not a segment: use segment://…, as stats shows it"
        )
    topic = Namespace(topic=str(name.partitioned_name))
    return rest.ask("GET", filled(f"{_T}/segments/{name.segment_id}/stats", topic))


SCALABLE: Final = (
    Command("list", "<namespace> [-p|--property Map]", run=_list),
    Command("create", f"{_PLACE} [-s|--segments Integer] [-p|--property Map]", f"PUT {_T}",
            lambda o: dict(o.property or ()), {"numInitialSegments": "segments"}),
    Command("migrate", f"{_PLACE} [-f|--force]", f"POST {_T}/migrate", query={"force": "force"}),
    Command("get-metadata", _PLACE, f"GET {_T}"),
    Command("stats", _PLACE, f"GET {_T}/stats"),
    Command("segment-stats", "<segment>", run=_segment_stats),
    Command("delete", f"{_PLACE} [-f|--force]", f"DELETE {_T}", query={"force": "force"}),
    Command("split-segment", f"{_PLACE} -s|--segment-id long", f"POST {_T}/split/{{segment_id}}"),
    Command("merge-segments", f"{_PLACE} --segment-id-1 long --segment-id-2 long", f"POST {_T}/merge/{{segment_id_1}}/{{segment_id_2}}"),
    Command("rebucket", f"{_PLACE} -s|--segment-id long -b|--bucket-count Integer", f"POST {_T}/rebucket/{{segment_id}}", query={"bucketCount": "bucket_count"}),
    Command("create-subscription", f"{_PLACE} -s|--subscription String [-t|--type String]", f"PUT {_S}", query={"type": "type"}),
    Command("delete-subscription", f"{_PLACE} -s|--subscription String", f"DELETE {_S}"),
    Command("seek", f"{_PLACE} -s|--subscription String -t|--timestamp long", f"POST {_S}/seek", query={"timestamp": "timestamp"}),
    Command("clear-backlog", f"{_PLACE} -s|--subscription String", f"POST {_S}/skip-all"),
    Command("get-auto-scale-policy", _PLACE, f"GET {_T}/autoScalePolicy"),
    Command("set-auto-scale-policy", f"{_PLACE} {AUTO_SCALE_FIELDS}", f"POST {_T}/autoScalePolicy", auto_scale),
    Command("remove-auto-scale-policy", _PLACE, f"DELETE {_T}/autoScalePolicy"),
    Command("permissions", _PLACE, f"GET {_T}/permissions"),
    Command("grant-permission", f"{_PLACE} -r|--role String -a|--actions List", f"POST {_T}/permissions/{{role}}", value("actions")),
    Command("revoke-permission", f"{_PLACE} -r|--role String", f"DELETE {_T}/permissions/{{role}}"),
)  # fmt: skip
