"""What is recorded and shown while a model trains."""
