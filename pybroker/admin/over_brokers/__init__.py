"""What the admin API of one broker does about topics and coordinators of the others."""
