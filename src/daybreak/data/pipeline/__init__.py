"""From text files to token shards, in parallel and resumable."""
