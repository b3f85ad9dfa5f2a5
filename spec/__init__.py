"""Models of what this project decides, and a checker that explores all their states."""
