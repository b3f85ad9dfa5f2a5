import subprocess
import sys

import pytest

from pybroker.base.errors import NotAllowed
from pybroker.spark import java_options
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.options import OPTIONS, Mode, chosen
from pybroker.spark.reading.places import of_topic

URL = {"service.url": "pulsar://somewhere:6650"}
TOKEN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


def test_names_are_given_once():
    names = [name.lower() for option in OPTIONS for name in (option.name, *option.aliases)]
    assert len(names) == len(set(names))


def test_an_unknown_option_is_refused_with_what_may_have_been_meant():
    with pytest.raises(NotAllowed, match=r"no option startingOffset: did you mean startingOffsets"):
        chosen(URL | {"startingOffset": "earliest"}, Mode.READ)


def test_the_names_of_kafkas_source_are_taken_where_they_mean_the_same():
    given = {"subscribe": "a, b", "startingTimestamp": "7", "maxOffsetsPerTrigger": "9"}
    options = chosen(URL | given, Mode.READ_STREAM)
    assert options["topics"] == ("a", "b")
    assert (options["startingTime"], options["maxRowsPerTrigger"]) == (7, 9)
    given = {
        "subscribePattern": "a.*",
        "endingOffsetsByTimestamp": '{"a": {"0": 7, "1": 8}, "b": 9}',
    }
    options = chosen(URL | given, Mode.READ)
    assert options["topicsPattern"] == "a.*"
    assert options["endingTime"] == {"a-partition-0": 7, "a-partition-1": 8, "b": 9}


def test_a_topic_without_partitions_may_be_named_as_its_only_one():
    assert of_topic({"a-partition-0": 7}, "persistent://public/default/a") == 7
    assert of_topic({"a-partition-1": 7}, "persistent://public/default/a") is None
    assert of_topic({"a": 7}, "persistent://public/default/a-partition-3") == 7


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("path", "set the option topic"),
        ("kafka.bootstrap.servers", r"set service\.url"),
        ("kafka.security.protocol", r"it is for Kafka; .*pulsar\.client"),
        ("includeHeaders", "__messageProperties is always there"),
        ("kafka.group.id", "set subscription"),
    ],
)
def test_what_another_format_has_is_refused_with_what_to_do_here(name, instead):
    with pytest.raises(NotAllowed, match=f"no option {name}: .*{instead}"):
        chosen(URL | {name: "x"}, Mode.READ)


def test_an_option_of_another_way_is_refused_with_its_way():
    with pytest.raises(NotAllowed, match=r"endingOffsets is for spark\.read, not for spark\.readS"):
        chosen(URL | {"endingOffsets": "latest"}, Mode.READ_STREAM)


def test_capitals_do_not_matter():
    assert chosen({"STARTINGOFFSETS": "Earliest"}, Mode.READ)["startingOffsets"] == "earliest"


def test_names_of_earlier_versions_are_still_taken():
    options = chosen({"service_url": "pulsar://a", "max_entries_per_trigger": "7"}, Mode.READS)
    assert (options["service.url"], options["maxEntriesPerTrigger"]) == ("pulsar://a", 7)


def test_two_names_of_one_option_are_refused():
    with pytest.raises(NotAllowed, match=r"both names of service\.url"):
        chosen(URL | {"service_url": "pulsar://b"}, Mode.READ)


def test_options_that_tune_the_java_client_have_no_effect():
    options = chosen(URL | {"pulsar.reader.receiverQueueSize": "100"}, Mode.READ)
    assert options == chosen(URL, Mode.READ)


@pytest.mark.parametrize(
    ("name", "value", "why", "mode"),
    [
        ("pulsar.reader.readCompacted", "true", "all messages are read", Mode.READ),
        ("pulsar.reader.cryptoFailureAction", "CONSUME", "fails the query", Mode.READ_STREAM),
        ("pulsar.reader.startMessageId", "1:1", "startingOffsets", Mode.READ),
        ("pulsar.producer.encryptionKeys", "key", "the messages would be readable", Mode.WRITE),
        ("pulsar.producer.accessMode", "Exclusive", "tasks publish in parallel", Mode.WRITE),
        (
            "pulsar.producer.hashingScheme",
            "Murmur3_32Hash",
            "keys go to the same partition",
            Mode.WRITE_STREAM,
        ),
        ("pulsar.client.useKeyStoreTls", "true", "PEM files", Mode.ALL),
        ("pulsar.client.socks5ProxyAddress", "a:1", "not support SOCKS", Mode.ALL),
    ],
)
def test_what_would_change_the_result_and_cannot_be_met_is_refused(name, value, why, mode):
    for spelt in (name, name.upper()):
        with pytest.raises(NotAllowed, match=f"{name}={value} is not supported: .*{why}"):
            chosen(URL | {spelt: value}, mode)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pulsar.reader.readCompacted", "False"),
        ("pulsar.reader.cryptoFailureAction", "FAIL"),
        ("pulsar.client.useKeyStoreTls", "false"),
    ],
)
def test_what_is_done_anyway_may_be_asked_for(name, value):
    assert chosen(URL | {name: value}, Mode.READ) == chosen(URL, Mode.READ)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("pulsar.reader.readCompact", "pulsar.reader.readCompacted"),
        ("pulsar.client.authParam", "pulsar.client.authParams"),
        ("pulsar.client.numIOThread", "pulsar.client.numIoThreads"),
    ],
)
def test_a_name_that_the_java_client_does_not_have_is_a_typing_error(name, meant):
    with pytest.raises(NotAllowed, match=f"did you mean {meant}"):
        chosen(URL | {name: "x"}, Mode.READ)


def test_every_setting_of_the_java_client_is_either_taken_or_refused():
    assert not java_options._HARMLESS.keys() & java_options._WHY_NOT.keys()
    ours = {option.name.lower() for option in OPTIONS}
    assert not ours & (java_options._HARMLESS.keys() | java_options._WHY_NOT.keys())


def test_the_connection_is_made_as_the_options_say():
    given = {
        "pulsar.client.listenerName": "outside",
        "pulsar.client.connectionTimeoutMs": "123",
        "pulsar.client.tlsCertificateFilePath": "/cert.pem",
        "pulsar.client.tlsKeyFilePath": "/key.pem",
    }
    made = Endpoint.of(chosen(URL | given, Mode.READ))._client_options()
    assert (made["listener_name"], made["connection_timeout_ms"]) == ("outside", 123)
    assert made["tls_certificate_file_path"] == "/cert.pem"
    assert made["tls_private_key_file_path"] == "/key.pem"


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("maxBytesPerTrigger", "0", "a whole number above 0"),
        ("maxBytesPerTrigger", "many", "a whole number above 0"),
        ("failOnDataLoss", "maybe", "'true' or 'false'"),
        ("startingOffsets", "[1]", "'earliest', 'latest' or a JSON object"),
        ("startingTime", "yesterday", "milliseconds since 1970, or a JSON object"),
        ("startingTime", '{"t": "yesterday"}', "milliseconds since 1970, or a JSON object"),
        ("endingTime", '{"t": -1}', "milliseconds since 1970, or a JSON object"),
        ("topics", " , ", "names separated by commas"),
        ("topic", " ", "some text"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_what_is_wanted(name, given, wanted):
    with pytest.raises(NotAllowed, match=f"The option {name} is .*must be {wanted}"):
        chosen(URL | {name: given}, Mode.READS)


def test_without_a_service_url_there_is_no_endpoint():
    with pytest.raises(NotAllowed, match=r"needs the option service\.url"):
        Endpoint.of(chosen({}, Mode.READ))


def token_of(params):
    given = {"pulsar.client.authPluginClassName": TOKEN, "pulsar.client.authParams": params}
    endpoint = Endpoint.of(chosen(URL | given, Mode.WRITE))
    assert params not in repr(endpoint)
    authentication = endpoint._authentication()
    assert authentication.method == "token"
    return authentication.data()


def test_a_token_comes_as_the_java_client_takes_it(tmp_path):
    assert token_of("token:abc") == b"abc"
    assert token_of("abc") == b"abc"
    assert token_of('{"token": "abc"}') == b"abc"
    path = tmp_path / "token"
    path.write_text("abc\n")
    assert token_of(f"file://{path}") == b"abc"


def test_credentials_of_no_known_kind_are_refused():
    given = {"pulsar.client.authPluginClassName": "AuthenticationAthenz"}
    with pytest.raises(NotAllowed, match="use one of AuthenticationToken"):
        Endpoint.of(chosen(URL | given, Mode.READ)).connect()


def test_credentials_without_their_kind_are_refused():
    endpoint = Endpoint.of(chosen(URL | {"pulsar.client.authParams": "token:abc"}, Mode.READ))
    with pytest.raises(NotAllowed, match=r"also needs pulsar.client.authPluginClassName"):
        endpoint.connect()


@pytest.mark.slow
def test_who_reads_does_not_import_what_only_writing_needs():
    """Spark starts many processes, and each imports these modules again."""
    heavy = "pyarrow.compute", "pybroker.spark.writing.sink", "pandas"
    program = f"import sys, pybroker.spark.datasource; print(sys.modules.keys() & set({heavy}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
