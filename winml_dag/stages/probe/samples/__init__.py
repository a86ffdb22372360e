"""Samples to try providers with: uses of operators drawn at random with a seed, and variations of ONNX's node tests."""
