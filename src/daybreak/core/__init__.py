"""Floor 1: what every room may use. Standard library, numpy, torch and rich only."""
