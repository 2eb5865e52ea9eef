"""Measures of a model: perplexity with its protocol, answers, generated text, statistics over seeds."""
