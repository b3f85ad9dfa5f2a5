"""Handlers of consumers' commands: subscribing, flow, redelivery, seeking, acknowledging."""
