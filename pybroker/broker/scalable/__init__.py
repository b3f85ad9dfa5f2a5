"""What clients of the V5 SDK see of topics: a topic's layout, and who consumes which segment."""
