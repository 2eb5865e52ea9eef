"""What every model is: the contract, Hugging Face's side of it, traces, and models on disk."""
