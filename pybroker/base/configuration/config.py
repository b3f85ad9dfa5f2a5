"""Configuration under broker.conf's own names, in snake_case here and camelCase in the file."""

from dataclasses import dataclass, field
from typing import Final

# Of schemas' compatibility.
STRATEGIES: Final = (
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)
# Fields with the number of a port, or None.
PORTS: Final = (
    "broker_service_port",
    "broker_service_port_tls",
    "web_service_port",
    "web_service_port_tls",
    "kafka_service_port",
    "kafka_service_port_tls",
)


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Most names end in the unit; otherwise a comment gives it."""

    cluster_name: str = "standalone"
    # For `pybroker broker`: the places of the metadata and the ledgers.
    metadata_store_url: str = ""  # zk:host:port,host:port; with or without zk:
    configuration_metadata_store_url: str = ""  # empty, or the same as metadata_store_url
    bookkeeper_metadata_service_uri: str = ""  # empty: /ledgers in the same ZooKeeper
    metadata_store_session_timeout_millis: int = 30_000
    metadata_store_config_path: str = ""  # configures ZooKeeper's client; see tls_settings
    bookkeeper_client_authentication_plugin: str = ""  # none is supported
    bookkeeper_tls_client_authentication: bool = False  # TLS to bookies
    bookkeeper_tls_provider_factory_class: str = "org.apache.bookkeeper.tls.TLSContextFactory"
    bookkeeper_tls_key_file_type: str = "PEM"
    bookkeeper_tls_trust_cert_types: str = "PEM"
    bookkeeper_tls_trust_certs_file_path: str = ""  # empty: the system's certificates
    bookkeeper_tls_certificate_file_path: str = ""  # empty: no client certificate
    bookkeeper_tls_key_file_path: str = ""
    bookkeeper_tls_key_store_password_path: str = ""  # for the key's file
    bookkeeper_tls_trust_store_password_path: str = ""
    bookkeeper_tls_cert_files_refresh_duration_seconds: int = 300  # 0: read once
    # BookKeeper's client property bookkeeper_hostnameVerificationEnabled.
    bookkeeper_hostname_verification_enabled: bool = False
    default_number_of_namespace_bundles: int = 4
    load_balancer_auto_bundle_split_enabled: bool = True
    load_balancer_namespace_bundle_max_topics: int = 1000
    load_balancer_namespace_bundle_max_sessions: int = 1000  # producers and consumers
    load_balancer_namespace_maximum_bundles: int = 128
    load_balancer_shedding_enabled: bool = True
    load_balancer_shedding_interval_minutes: int = 1
    bind_address: str = "127.0.0.1"
    # Ports. 0: any free port. None, an empty value in the file: no port.
    broker_service_port: int | None = 6650
    broker_service_port_tls: int | None = None
    web_service_port: int | None = 8080
    web_service_port_tls: int | None = None
    kafka_service_port: int | None = None  # for Kafka's clients
    kafka_service_port_tls: int | None = None
    kafka_advertised_listeners: str = ""  # empty: the address clients connected to
    advertised_address: str = ""  # empty: the address clients connected to; localhost for 127.0.0.1
    # Name:pulsar://host:port, comma-separated; empty: no named listeners.
    advertised_listeners: str = ""
    internal_listener_name: str = ""  # empty: the first advertised listener
    journal_sync_data: bool = True  # False: receipts do not wait for the disk
    log_level: str = "info"  # in general, or per area: warning,storage=debug,access=info
    log_format: str = "text"  # or json
    # WebSockets, on the HTTP port
    web_socket_service_enabled: bool = True
    web_socket_max_text_frame_size: int = 1024 * 1024  # bytes of a message
    web_socket_ping_duration_seconds: int = -1  # 0 or less: no pings
    web_socket_session_idle_timeout_millis: int = 300_000
    # Received by visitors' clients, uncompressed and not yet taken; 0: max_pending_delivery_bytes.
    web_socket_pulsar_client_memory_limit_in_mb: int = 0
    web_socket_allowed_origins: tuple[str, ...] = ()  # other sites' pages; *: all
    # limits
    max_message_size: int = 5 * 1024 * 1024  # bytes
    # Connections of the binary protocol; 0: no limit. A client keeps one or two.
    broker_max_connections: int = 5000
    broker_max_connections_per_ip: int = 1000
    # bytes of all connections together
    max_pending_publish_bytes: int = 64 * 1024 * 1024  # received, not yet durable
    max_pending_frame_bytes: int = 64 * 1024 * 1024  # large frames, partly received
    max_pending_delivery_bytes: int = 64 * 1024 * 1024  # written, not yet read by the peer
    handshake_timeout_ms: int = 10_000
    keep_alive_interval_seconds: int = 30
    metrics_cache_ms: int = 1000  # the time that /metrics is cached; 0: not cached
    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    # 0: no limit
    max_producers_per_topic: int = 0
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions_per_topic: int = 0
    max_topics_per_namespace: int = 0
    # rates; 0 or less: no limit
    max_publish_rate_per_topic_in_messages: int = 0
    max_publish_rate_per_topic_in_bytes: int = 0
    dispatch_throttling_rate_per_topic_in_msg: int = 0
    dispatch_throttling_rate_per_topic_in_byte: int = 0
    dispatch_throttling_rate_per_subscription_in_msg: int = 0
    dispatch_throttling_rate_per_subscription_in_byte: int = 0
    dispatch_throttling_rate_per_replicator_in_msg: int = 0
    dispatch_throttling_rate_per_replicator_in_byte: int = 0
    dispatch_throttling_rate_relative_to_publish_rate: bool = False
    subscribe_throttling_rate_per_consumer: int = 0
    subscribe_rate_period_per_consumer_in_second: int = 30
    # backlogs
    backlog_quota_check_interval_in_seconds: int = 60
    backlog_quota_default_limit_bytes: int = -1
    backlog_quota_default_limit_gb: float = -1.0  # the older key; overrides the newer one if set
    backlog_quota_default_limit_second: int = -1
    backlog_quota_default_retention_policy: str = "producer_request_hold"
    ttl_duration_default_in_seconds: int = 0
    message_expiry_check_interval_in_minutes: int = 5
    # topics
    scalable_topics_enabled: bool = True  # serves clients of the V5 SDK
    scalable_topic_consumer_session_grace_period_seconds: int = 60
    scalable_topic_auto_scale_enabled: bool = True
    scalable_topic_auto_scale_interval_seconds: int = 60
    scalable_topic_max_segments: int = 64
    scalable_topic_min_segments: int = 1
    scalable_topic_entry_bucket_budget: int = 4  # of a new topic, over all its segments
    scalable_topic_entry_bucket_max_per_segment: int = 1024
    scalable_topic_rebucket_cooldown_seconds: int = 60
    scalable_topic_max_dag_depth: int = 10  # merges in the lineage of a segment
    scalable_topic_split_cooldown_seconds: int = 60
    scalable_topic_split_vs_rebucket_min_msg_rate_in_threshold: float = 1000.0
    scalable_topic_split_msg_rate_in_threshold: float = 10_000.0
    scalable_topic_split_bytes_rate_in_threshold: int = 50_000_000
    scalable_topic_split_msg_rate_out_threshold: float = 50_000.0
    scalable_topic_split_bytes_rate_out_threshold: int = 250_000_000
    scalable_topic_merge_cooldown_seconds: int = 300
    scalable_topic_merge_window_seconds: int = 300
    scalable_topic_merge_msg_rate_in_threshold: float = 1000.0
    scalable_topic_merge_bytes_rate_in_threshold: int = 5_000_000
    scalable_topic_merge_msg_rate_out_threshold: float = 5000.0
    scalable_topic_merge_bytes_rate_out_threshold: int = 25_000_000
    enable_persistent_topics: bool = True
    enable_non_persistent_topics: bool = True
    allow_auto_topic_creation: bool = True
    allow_auto_topic_creation_type: str = "non-partitioned"
    default_num_partitions: int = 1
    max_num_partitions_per_partitioned_topic: int = 100_000
    broker_delete_inactive_topics_enabled: bool = True
    broker_delete_inactive_topics_mode: str = "delete_when_no_subscriptions"
    broker_delete_inactive_topics_frequency_seconds: int = 60
    broker_delete_inactive_topics_max_inactive_duration_seconds: int = 0  # 0: same as the frequency
    broker_delete_inactive_partitioned_topic_metadata_enabled: bool = False
    enable_broker_side_subscription_pattern_evaluation: bool = True
    subscription_pattern_max_length: int = 50  # characters
    allow_auto_subscription_creation: bool = True
    subscription_types_enabled: str = "Exclusive,Shared,Failover,Key_Shared"
    subscription_key_shared_use_consistent_hashing: bool = True
    acknowledgment_at_batch_index_level_enabled: bool = True
    subscription_expiration_time_minutes: int = 0
    subscription_expiry_check_interval_in_minutes: int = 5
    encryption_require_on_producer: bool = False
    broker_entry_metadata_interceptors: tuple[str, ...] = ()  # Apache's class names
    exposing_broker_entry_metadata_to_client_enabled: bool = False
    broker_service_compaction_threshold_in_bytes: int = 0  # 0: only on request
    broker_service_compaction_monitor_interval_in_seconds: int = 60
    topic_compaction_retain_null_key: bool = False
    topic_compaction_delete_retention_seconds: int = 86_400  # of messages that delete a key
    # Kafka's topic `orders` is persistent://tenant/namespace/orders.
    kafka_tenant: str = "public"
    kafka_namespace: str = "default"
    kafka_group_initial_rebalance_delay_ms: int = 3000  # a first member waits for others
    kafka_group_max_size: int = 1000  # members
    kafka_offsets_retention_minutes: int = 10_080  # of groups without members
    # schemas
    schema_compatibility_strategy: str = "FULL"
    system_topic_schema_compatibility_strategy: str = "ALWAYS_COMPATIBLE"
    is_schema_validation_enforced: bool = False
    is_allow_auto_update_schema_enabled: bool = True
    # deduplication
    broker_deduplication_enabled: bool = False
    broker_deduplication_max_number_of_producers: int = 10_000
    broker_deduplication_entries_interval: int = 1000
    broker_deduplication_snapshot_interval_seconds: int = 120
    delayed_delivery_enabled: bool = True
    delayed_delivery_tick_time_millis: int = 1000  # messages may be late by a twentieth of this
    is_delayed_delivery_deliver_at_time_strict: bool = False  # True: not late either
    delayed_delivery_max_delay_in_millis: int = 0  # 0: no limit
    # managed ledgers
    managed_ledger_max_entries_per_ledger: int = 50_000
    managed_ledger_max_size_per_ledger_mbytes: int = 2048
    managed_ledger_min_ledger_rollover_time_minutes: int = 10
    managed_ledger_max_ledger_rollover_time_minutes: int = 240
    managed_ledger_default_mark_delete_rate_limit: float = 1.0  # cursor writes a second
    managed_ledger_default_ensemble_size: int = 2
    managed_ledger_default_write_quorum: int = 2
    managed_ledger_default_ack_quorum: int = 2
    managed_ledger_password: str = field(default="", repr=False)  # for new ledgers on bookies
    managed_ledger_digest_type: str = "CRC32C"
    default_retention_time_in_minutes: int = 0
    default_retention_size_in_mb: int = 0
    # transactions
    transaction_coordinator_enabled: bool = True
    transaction_coordinator_scalable_topics_enabled: bool = True  # for clients of the V5 SDK
    transaction_coordinators: int = 16
    max_active_transactions_per_coordinator: int = 100_000
    # 0: no limit; superusers have no limit
    max_active_transactions_per_principal: int = 10_000  # across all coordinators
    max_active_transactions_per_connection: int = 5_000
    max_participants_per_transaction: int = 100_000  # topics and subscriptions; 0: no limit
    max_participants_per_connection: int = 200_000  # of all its live transactions
    max_participants_per_principal: int = 1_000_000  # of all its live transactions
    max_active_transactions_per_namespace: int = 0  # transactions that take part in it
    max_transaction_timeout_ms_per_namespace: int = 0  # of these transactions
    # contents of open transactions, in messages and bytes; 0: no limit
    max_open_transaction_messages_per_topic: int = 0
    max_open_transaction_bytes_per_topic: int = 0
    max_open_transaction_messages_per_namespace: int = 0
    max_open_transaction_bytes_per_namespace: int = 0
    max_open_transaction_messages_per_principal: int = 0
    max_open_transaction_bytes_per_principal: int = 0
    max_transaction_timeout_ms: int = 86_400_000
    transaction_abort_on_disconnect: bool = False  # abort when the connection that began it closes
    transaction_buffer: str = "logOrder"  # for topics without a policy for it
    prepared_transaction_max_age_ms: int = 600_000  # then there is a warning; 0: never
    abort_prepared_transactions_after_max_age: bool = False
    max_prepared_transactions_per_principal: int = 1_000  # in a coordinator; 0: no limit
    prepare_transaction_roles: tuple[str, ...] = ("*",)  # "*": every role; superusers always may
    transaction_outcome_retention_ms: int = 3_600_000
    transactional_id_expiration_ms: int = 604_800_000  # since the last use
    max_transactional_ids_per_principal: int = 10_000  # 0: no limit
    transaction_metadata_snapshot_entries: int = 10_000
    transaction_buffer_snapshot_max_transaction_count: int = 1000
    transaction_buffer_snapshot_min_time_in_millis: int = 5000
    transaction_pending_ack_log_entries: int = 10_000
    test_mode: bool = False  # fault points, and a clock that tests can advance, over the admin API
    # TLS: paths of PEM files
    tls_certificate_file_path: str = ""
    tls_key_file_path: str = ""
    tls_trust_certs_file_path: str = ""  # for client certificates; empty: do not request any
    tls_require_trusted_client_cert_on_connect: bool = False
    tls_protocols: tuple[str, ...] = ()
    tls_ciphers: tuple[str, ...] = ()
    web_service_tls_protocols: tuple[str, ...] = ()
    web_service_tls_ciphers: tuple[str, ...] = ()
    tls_cert_refresh_check_duration_sec: int = 300
    # authentication (pybroker/security)
    authentication_enabled: bool = False
    authentication_providers: tuple[str, ...] = ()  # token, basic, tls, or Apache's class names
    authentication_refresh_check_seconds: int = 60
    strict_auth_method: bool = False  # HTTP requests must name their authentication method
    anonymous_user_role: str = ""  # for clients without a known method; empty: reject them
    authenticate_metrics_endpoint: bool = False
    proxy_roles: tuple[str, ...] = ()
    authenticate_original_auth_data: bool = False
    authorization_enabled: bool = False
    authorization_allow_wildcards_matching: bool = False
    super_user_roles: tuple[str, ...] = ()
    token_secret_key: str = field(default="", repr=False)  # file:, data:, a path, or base64
    token_public_key: str = ""
    token_public_alg: str = "RS256"
    token_auth_claim: str = "sub"
    token_audience_claim: str = ""
    token_audience: str = ""
    token_allowed_clock_skew_seconds: int = 0
    basic_auth_conf: str = field(default="", repr=False)  # an .htpasswd, as file:, data:, …
    # A broker's login on the other brokers of its cluster; the role must be in superUserRoles.
    broker_client_authentication_plugin: str = ""  # as pulsar-client's --auth-plugin
    broker_client_authentication_parameters: str = field(default="", repr=False)
    broker_client_tls_enabled: bool = False
    broker_client_trust_certs_file_path: str = ""
    broker_client_certificate_file_path: str = ""
    broker_client_key_file_path: str = ""

    @property
    def local_only(self) -> bool:
        """Whether no other machine can connect."""
        address = self.bind_address
        if address.startswith("127."):  # a host name that begins so may have any address
            return address.replace(".", "").isdecimal()
        return address in ("localhost", "::1")

    def advertised(self, host: str) -> str:
        """The host name returned to clients that connected to the broker at `host`.

        On the loopback address it is `localhost`, as in Apache Pulsar's standalone: clients keep
        connections by host name, and would open a second connection under another name.
        """
        return self.advertised_address or ("localhost" if host == "127.0.0.1" else host)
