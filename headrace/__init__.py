"""Distributed batch inference over Parquet with compiled ONNX models on Ray."""

__version__ = "0.1.0"
