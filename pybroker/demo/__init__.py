"""`make demo`: real data through PySpark, exactly once, while processes are killed."""
