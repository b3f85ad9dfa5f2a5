"""What Spark's Python processes run as they start."""
