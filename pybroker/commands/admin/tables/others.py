"""Commands for schemas, transactions and groups of Kafka's clients."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pybroker.commands.admin import definitions
from pybroker.commands.admin.command import Command, filled
from pybroker.commands.admin.rest import Rest

_T: Final = "/admin/v3/transactions"
_KAFKA: Final = "/admin/v3/kafka"
_TXN: Final = "-m|--most-sig-bits long -l|--least-sig-bits long"
_TOPIC: Final = "-t|--topic String"


def _schema_in_file(options: Namespace) -> Any:
    """The schema in a file: {"type": …, "schema": …, "properties": {…}}"""
    try:
        return json.loads(Path(options.filename).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{options.filename} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{options.filename} is not JSON: {error}") from None


def _schema(rest: Rest, options: Namespace) -> Any:
    path = "schemas/{bare}/schema"
    if options.all_version:
        path = "schemas/{bare}/schemas"
    elif options.version is not None:
        path += "/{version}"
    return rest.ask("GET", filled(path, options))


def _extract(rest: Rest, options: Namespace) -> Any:
    raise ValueError(
        f"{options.classname} is a Java class, which only Java's pulsar-admin can load: print the "
        "schema with its --dry-run, and pass that to `schemas upload`"
    )


SCHEMAS: Final = (
    Command("extract", "<topicName> -j|--jar String -t|--type String -c|--classname String [-a|--always-allow-null] [-n|--dry-run]", run=_extract),
    Command("get", "<topicName> [-v|--version Long] [-a|--all-version]", run=_schema),
    Command("metadata", "<topicName>", "GET schemas/{bare}/metadata"),
    Command("upload", "<topicName> -f|--filename String", "POST schemas/{bare}/schema", _schema_in_file),
    Command("compatibility", "<topicName> -f|--filename String", "POST schemas/{bare}/compatibility", _schema_in_file),
    Command("delete", "<topicName> [-f|--force]", "DELETE schemas/{bare}/schema", query={"force": "force"}),
)  # fmt: skip
TRANSACTIONS: Final = (
    Command("coordinators-list", "", f"GET {_T}/coordinators"),
    Command("coordinator-stats", "[-c|--coordinator-id Integer]", f"GET {_T}/coordinatorStats", query={"coordinatorId": "coordinator_id"}),
    Command("coordinator-internal-stats", "-c|--coordinator-id int [-m|--metadata]", f"GET {_T}/coordinatorInternalStats/{{coordinator_id}}", query={"metadata": "metadata"}),
    Command("scale-transactionCoordinators", "-r|--replicas int", f"POST {_T}/transactionCoordinator/replicas", lambda o: o.replicas),
    Command("slow-transactions", "[-c|--coordinator-id Integer] -t|--time Seconds", run=lambda rest, o: rest.ask(
        "GET", f"{_T}/slowTransactions/{o.time * 1000}", query={} if o.coordinator_id is None else {"coordinatorId": str(o.coordinator_id)})),
    Command("transactional-ids", "[-i|--id String] [-o|--owner String]", run=lambda rest, o: rest.ask(
        "GET", f"{_T}/transactionalIds" + ("" if o.id is None else f"/{quote(o.id, safe='')}"), query={} if o.owner is None else {"owner": o.owner})),
    Command("transaction-metadata", _TXN, f"GET {_T}/transactionMetadata/{{most_sig_bits}}/{{least_sig_bits}}"),
    Command("abort-transaction", f"{_TXN} [-r|--reason String]", f"POST {_T}/abortTransaction/{{most_sig_bits}}/{{least_sig_bits}}", query={"reason": "reason"}),
    Command("transaction-buffer-stats", f"{_TOPIC} [-l|--low-water-mark] [-s|--segment-stats]", f"GET {_T}/transactionBufferStats/{{bare}}",
            query={"lowWaterMarks": "low_water_mark", "segmentStats": "segment_stats"}),
    Command("buffer-snapshot-internal-stats", f"{_TOPIC} [-m|--metadata]", f"GET {_T}/transactionBufferInternalStats/{{bare}}", query={"metadata": "metadata"}),
    Command("transaction-in-buffer-stats", f"{_TXN} {_TOPIC}", f"GET {_T}/transactionInBufferStats/{{bare}}/{{most_sig_bits}}/{{least_sig_bits}}"),
    Command("pending-ack-stats", f"{_TOPIC} -s|--sub-name String [-l|--low-water-mark]", f"GET {_T}/pendingAckStats/{{bare}}/{{sub_name}}", query={"lowWaterMarks": "low_water_mark"}),
    Command("pending-ack-internal-stats", f"{_TOPIC} -s|--subscription-name String [-m|--metadata]", f"GET {_T}/pendingAckInternalStats/{{bare}}/{{subscription_name}}", query={"metadata": "metadata"}),
    Command("transaction-in-pending-ack-stats", f"{_TXN} {_TOPIC} -s|--sub-name String", f"GET {_T}/transactionInPendingAckStats/{{bare}}/{{sub_name}}/{{most_sig_bits}}/{{least_sig_bits}}"),
    Command("position-stats-in-pending-ack", f"{_TOPIC} -s|--subscription-name String -l|--ledger-id Long -e|--entry-id Long [-b|--batch-index Integer]",
            f"GET {_T}/positionStatsInPendingAck/{{bare}}/{{subscription_name}}/{{ledger_id}}/{{entry_id}}", query={"batchIndex": "batch_index"}),
)  # fmt: skip
KAFKA_GROUPS: Final = (
    Command("list", "", f"GET {_KAFKA}/groups"),
    Command("get", "<group>", run=lambda rest, o: rest.ask("GET", f"{_KAFKA}/groups/{quote(o.group, safe='')}")),
    Command("end-offsets", "<topic>", run=lambda rest, o: rest.ask("GET", f"{_KAFKA}/endOffsets/{quote(o.topic, safe='')}")),
    Command("forget-topic", "<topic> [-p|--partition Integer]", run=lambda rest, o: rest.ask(
        "DELETE", f"{_KAFKA}/offsets/{quote(o.topic, safe='')}", query={} if o.partition is None else {"partition": str(o.partition)})),
)  # fmt: skip
DEFINITIONS: Final = (
    Command("export", "[-o|--output String]", run=definitions.export),
    Command("import", "-f|--filename String [--dry-run]", run=definitions.bring_in),
)
