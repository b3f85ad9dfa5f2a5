"""What the broker says of itself: levels by area, lines as text or JSON, and who did what."""
