"""From a recipe and prepared data to a finished run."""
