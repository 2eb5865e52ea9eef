"""From text to batches: sources, sentence splitting, tokenizers, the token store, batches."""
