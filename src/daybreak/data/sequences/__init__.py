"""From token shards to batches of sequences."""
