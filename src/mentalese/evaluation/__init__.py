"""How good a model is: perplexity with its protocol, generated text, statistics over seeds."""
