"""What a budget will buy: a law of masked-LM losses, fitted on recorded runs."""
