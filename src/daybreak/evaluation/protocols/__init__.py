"""How a benchmark is run: settings, conventions and published results."""
