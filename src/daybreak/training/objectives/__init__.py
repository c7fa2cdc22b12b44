"""What a model is trained to predict."""
