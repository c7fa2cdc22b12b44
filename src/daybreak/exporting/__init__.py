"""Floor 3: the folder that leaves the house: Hugging Face export, model card, parity gate."""
