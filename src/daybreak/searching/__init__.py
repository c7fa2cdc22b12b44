"""Search in the text of a run: passages, their vectors and a BM25 index on disk, and queries over them."""
