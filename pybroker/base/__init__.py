"""What every package may use: configuration, errors, names, JSON, metrics, time and tasks."""
