"""Settings of the Java client that the pulsar-spark connector hands on: pulsar.client.*,
pulsar.reader.*, pulsar.producer.*.

Those that only tune the Java client are taken and have no effect: there is none here. Those that
would change what is read or written, or who may see it, and that nothing here does, are refused;
but for the value that asks for what is done anyway. A name that the Java client does not have is
refused, too: it is a typing error, or it is new and nobody knows what it changes.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

from pybroker.base.errors import NotAllowed

# What a query needs of the admin API it asks the broker for: none of these can change anything.
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

# The value that changes nothing (None: there is none), and why others are refused.
_REFUSED: Final[Mapping[str, tuple[str | None, str]]] = {
    "pulsar.client.proxyServiceUrl": (None, "the client knows no SNI proxy; connect directly"),
    "pulsar.client.proxyProtocol": (None, "the client knows no SNI proxy; connect directly"),
    "pulsar.client.socks5ProxyAddress": (None, "the client knows no SOCKS proxy"),
    "pulsar.client.socks5ProxyUsername": (None, "the client knows no SOCKS proxy"),
    "pulsar.client.socks5ProxyPassword": (None, "the client knows no SOCKS proxy"),
    "pulsar.client.serviceUrlProvider": (None, "give the brokers' addresses by service.url"),
    "pulsar.client.authentication": (None, "give pulsar.client.authPluginClassName and authParams"),
    "pulsar.client.authParamMap": (None, "give pulsar.client.authParams, as JSON if you like"),
    **{
        f"pulsar.client.{name}": (
            harmless,
            "certificates are PEM files here: give pulsar.client.tlsTrustCertsFilePath, and "
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
        f"pulsar.client.{name}": (None, "Python's ssl module chooses; configure OpenSSL instead")
        for name in ("tlsCiphers", "tlsProtocols", "sslProvider")
    },
    "pulsar.client.sslFactoryPlugin": (None, "it names a Java class"),
    "pulsar.client.sslFactoryPluginParams": (None, "it is for a Java class"),
    "pulsar.reader.readCompacted": (
        "false",
        "every message is read, the earlier ones of a key too; to keep the last of each key, use "
        "max_by(…, __messageId) or dropDuplicates",
    ),
    "pulsar.reader.cryptoKeyReader": (None, "the source cannot decrypt, and fails where it must"),
    "pulsar.reader.cryptoFailureAction": (
        "fail",
        "an encrypted message fails the query; skip it on the subscription to go on",
    ),
    "pulsar.reader.startMessageId": (None, "use the option startingOffsets"),
    "pulsar.reader.startMessageFromRollbackDurationInSec": (None, "use the option startingTime"),
    "pulsar.reader.resetIncludeHead": (
        "true",
        "a message that startingOffsets names is read; name the next one",
    ),
    "pulsar.reader.keyHashRanges": (None, "whole topics are read; filter the rows by __key"),
    "pulsar.reader.readerListener": (None, "it names a Java class"),
    "pulsar.reader.readerInterceptorList": (None, "it names Java classes"),
    "pulsar.reader.readerDecryptFailListener": (None, "it names a Java class"),
    "pulsar.producer.encryptionKeys": (
        None,
        "the sink cannot encrypt, and the messages would be readable: encrypt the values before "
        "they are written, or publish with pybroker.client and a crypto_key_reader",
    ),
    "pulsar.producer.cryptoKeyReader": (None, "the sink cannot encrypt"),
    "pulsar.producer.messageCrypto": (None, "the sink cannot encrypt"),
    "pulsar.producer.cryptoFailureAction": ("fail", "the sink cannot encrypt"),
    "pulsar.producer.messageRoutingMode": (
        "roundrobinpartition",
        "keys decide the partition, and rows without a key take turns",
    ),
    "pulsar.producer.customMessageRouter": (None, "it names a Java class"),
    "pulsar.producer.hashingScheme": (
        "javastringhash",
        "keys go where official clients put them by default",
    ),
    "pulsar.producer.accessMode": (
        "shared",
        "a query's tasks publish side by side; the control topic keeps a second query out",
    ),
    "pulsar.producer.initialSequenceId": (None, "transactions keep a rerun's messages apart"),
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
    """Of a name that the table of options, `ours`, lacks. Raises NotAllowed unless it changes
    nothing."""
    asked = name.lower()
    if asked in _HARMLESS or asked.startswith(_OF_ADMIN):
        return
    if asked in _WHY_NOT:
        known, harmless, why = _WHY_NOT[asked]
        if harmless is not None and value.strip().lower() == harmless:
            return
        raise NotAllowed(f"The option {known}={value} cannot be met: {why}. Leave it out")
    names = {each.lower(): each for each in (*_HARMLESS.values(), *_REFUSED, *ours)}
    meant = difflib.get_close_matches(asked, names, n=1)
    raise NotAllowed(
        f"The option {name} is none that the Java client is known to have"
        + (f": did you mean {names[meant[0]]}?" if meant else ": leave it out")
    )
