"""What Spark's Python processes run at startup."""
