"""What clients saw, and what holds it against the promises."""
