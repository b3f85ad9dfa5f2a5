"""Makes one broker's admin API answer for the topics and coordinators of the others."""
