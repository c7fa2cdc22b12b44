"""Train, import and apply tokenizers."""
