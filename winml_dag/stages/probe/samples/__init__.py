"""What a provider is tried with: uses of operators, drawn at random with a seed, and ONNX's own node tests varied."""
