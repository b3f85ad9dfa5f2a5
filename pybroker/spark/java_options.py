"""The Java client settings that the pulsar-spark connector passes on: pulsar.client.*,
pulsar.reader.*, pulsar.producer.*.

Settings that only tune the Java client are accepted and ignored. Settings that would change what is
read or written, or who may see it, are refused if they are not implemented here, except for the
value that matches the actual behaviour. Names that the Java client does not have are refused too:
they are typing errors, or new settings of unknown effect.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

from pybroker.base.errors import NotAllowed

# Queries do not use the admin API: they ask the broker, so these settings have no effect.
_OF_ADMIN: Final = "pulsar.admin."

_TUNING: Final[Mapping[str, str]] = {
    "pulsar.client.": """
        autoCertRefreshSeconds concurrentLookupRequest connectionMaxIdleSeconds connectionsPerBroker
        description dnsLookupBindAddress dnsLookupBindPort dnsServerAddresses enableBusyWait
        enableTransaction initialBackoffIntervalNanos keepAliveIntervalSeconds lookupProperties
        lookupTimeoutMs maxBackoffIntervalNanos maxLookupRedirects maxLookupRequest
        maxNumberOfRejectedRequestPerConnection memoryLimitBytes numIoThreads numListenerThreads
        readTimeoutMs requestTimeoutMs serviceUrl statsIntervalSeconds useTcpNoDelay useTls
    """,
    "pulsar.reader.": """
        autoAckOldestChunkedMessageOnQueueFull autoUpdatePartitions
        autoUpdatePartitionsIntervalSeconds expireTimeOfIncompleteChunkedMessageMillis
        maxPendingChunkedMessage poolMessages readerName receiverQueueSize subscriptionName
        subscriptionRolePrefix topicName topicNames
    """,
    "pulsar.producer.": """
        autoUpdatePartitions autoUpdatePartitionsIntervalSeconds batcherBuilder batchingEnabled
        batchingMaxBytes batchingMaxMessages batchingMaxPublishDelayMicros
        batchingPartitionSwitchFrequencyByPublishDelay blockIfQueueFull chunkMaxMessageSize
        isNonPartitionedTopicExpected lazyStartPartitionedProducers maxPendingMessages
        maxPendingMessagesAcrossPartitions multiSchema producerName sendTimeoutMs topicName
    """,
}

# The value that is harmless (None: no value is), and why others are refused.
_REFUSED: Final[Mapping[str, tuple[str | None, str]]] = {
    "pulsar.client.proxyServiceUrl": (
        None,
        "the client does not support SNI proxies; connect directly",
    ),
    "pulsar.client.proxyProtocol": (
        None,
        "the client does not support SNI proxies; connect directly",
    ),
    "pulsar.client.socks5ProxyAddress": (None, "the client does not support SOCKS proxies"),
    "pulsar.client.socks5ProxyUsername": (None, "the client does not support SOCKS proxies"),
    "pulsar.client.socks5ProxyPassword": (None, "the client does not support SOCKS proxies"),
    "pulsar.client.serviceUrlProvider": (None, "set the brokers' addresses in service.url"),
    "pulsar.client.authentication": (None, "set pulsar.client.authPluginClassName and authParams"),
    "pulsar.client.authParamMap": (None, "set pulsar.client.authParams, which may be JSON"),
    **{
        f"pulsar.client.{name}": (
            harmless,
            "certificates must be PEM files: set pulsar.client.tlsTrustCertsFilePath, and "
            "tlsCertificateFilePath with tlsKeyFilePath",
        )
        for name, harmless in (
            ("useKeyStoreTls", "false"),
            ("tlsKeyStoreType", None),
            ("tlsKeyStorePath", None),
            ("tlsKeyStorePassword", None),
            ("tlsTrustStoreType", None),
            ("tlsTrustStorePath", None),
            ("tlsTrustStorePassword", None),
        )
    },
    **{
        f"pulsar.client.{name}": (None, "Python's ssl module decides; configure OpenSSL instead")
        for name in ("tlsCiphers", "tlsProtocols", "sslProvider")
    },
    "pulsar.client.sslFactoryPlugin": (None, "it names a Java class"),
    "pulsar.client.sslFactoryPluginParams": (None, "it configures a Java class"),
    "pulsar.reader.readCompacted": (
        "false",
        "all messages are read, including earlier ones of a key; to keep the last of each key, use "
        "max_by(…, __messageId) or dropDuplicates",
    ),
    "pulsar.reader.cryptoKeyReader": (
        None,
        "the source cannot decrypt and fails on encrypted messages",
    ),
    "pulsar.reader.cryptoFailureAction": (
        "fail",
        "an encrypted message fails the query; skip it on the subscription to continue",
    ),
    "pulsar.reader.startMessageId": (None, "use the option startingOffsets"),
    "pulsar.reader.startMessageFromRollbackDurationInSec": (None, "use the option startingTime"),
    "pulsar.reader.resetIncludeHead": (
        "true",
        "the message in startingOffsets is read; use the next message",
    ),
    "pulsar.reader.keyHashRanges": (None, "whole topics are read; filter the rows by __key"),
    "pulsar.reader.readerListener": (None, "it names a Java class"),
    "pulsar.reader.readerInterceptorList": (None, "it names Java classes"),
    "pulsar.reader.readerDecryptFailListener": (None, "it names a Java class"),
    "pulsar.producer.encryptionKeys": (
        None,
        "the sink cannot encrypt, so the messages would be readable: encrypt the values before "
        "writing, or publish with pybroker.client and a crypto_key_reader",
    ),
    "pulsar.producer.cryptoKeyReader": (None, "the sink cannot encrypt"),
    "pulsar.producer.messageCrypto": (None, "the sink cannot encrypt"),
    "pulsar.producer.cryptoFailureAction": ("fail", "the sink cannot encrypt"),
    "pulsar.producer.messageRoutingMode": (
        "roundrobinpartition",
        "keys decide the partition; rows without a key are distributed round-robin",
    ),
    "pulsar.producer.customMessageRouter": (None, "it names a Java class"),
    "pulsar.producer.hashingScheme": (
        "javastringhash",
        "keys go to the same partition as with the official clients' default",
    ),
    "pulsar.producer.accessMode": (
        "shared",
        "a query's tasks publish in parallel; the control topic keeps out a second query",
    ),
    "pulsar.producer.initialSequenceId": (None, "transactions prevent duplicates of a rerun"),
    "pulsar.producer.initialSubscriptionName": (
        None,
        "create the subscription before the query starts",
    ),
    "pulsar.producer.properties": (None, "the sink's producers have none"),
}

_HARMLESS: Final = {
    (prefix + name).lower(): prefix + name
    for prefix, names in _TUNING.items()
    for name in names.split()
}
_WHY_NOT: Final = {name.lower(): (name, *what) for name, what in _REFUSED.items()}


def check(name: str, value: str, ours: Sequence[str]) -> None:
    """Checks an option that is not in the table of options, `ours`. Raises NotAllowed unless it is
    harmless."""
    asked = name.lower()
    if asked in _HARMLESS or asked.startswith(_OF_ADMIN):
        return
    if asked in _WHY_NOT:
        known, harmless, why = _WHY_NOT[asked]
        if harmless is not None and value.strip().lower() == harmless:
            return
        raise NotAllowed(f"The option {known}={value} is not supported: {why}. Remove it")
    names = {each.lower(): each for each in (*_HARMLESS.values(), *_REFUSED, *ours)}
    meant = difflib.get_close_matches(asked, names, n=1)
    raise NotAllowed(
        f"The option {name} is not a known option of the Java client"
        + (f": did you mean {names[meant[0]]}?" if meant else ": remove it")
    )
