"""What clients saw, and the checks of it against the promises."""
