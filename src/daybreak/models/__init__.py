"""Floor 2: architectures. Each file owns its block, its initialisation and its way to and from Hugging Face."""
