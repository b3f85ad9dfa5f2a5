"""Topics, subscriptions and dispatch: what the broker does, without sockets."""
