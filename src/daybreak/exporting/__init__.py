"""Export of models: Hugging Face folder, model card, parity check, ONNX, the hub."""
