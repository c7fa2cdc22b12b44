"""From any text to token shards, and back to rows of tokens."""
