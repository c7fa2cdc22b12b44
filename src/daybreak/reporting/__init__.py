"""Floor 3: run folders -> one HTML page. Reads files through ``base``; knows no model, no trainer, no torch."""
