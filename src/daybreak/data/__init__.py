"""Turn text into token shards, and token shards into sequences."""
