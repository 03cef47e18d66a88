"""What is asked of a posterior."""
