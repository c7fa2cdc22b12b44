"""Floor 1: what every room may use. Standard library, numpy and torch only."""
