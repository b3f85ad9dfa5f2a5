"""The group coordinator: groups at work, with their timers, over the offsets logs."""
