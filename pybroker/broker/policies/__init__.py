"""Policies: effective values from topic, namespace and broker, and the actors that apply them."""
