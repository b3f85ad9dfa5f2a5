"""How the admin API of one broker answers for topics and coordinators of the others."""
