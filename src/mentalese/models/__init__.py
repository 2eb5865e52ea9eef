"""The interface of a model, the base of families, traces, and models on disk."""
