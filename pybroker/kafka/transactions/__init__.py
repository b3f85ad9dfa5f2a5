"""Kafka's transactional producers, on the coordinators and transactional ids that Pulsar's use."""
