"""Serves a model through `transformers serve`: an endpoint that clients of the OpenAI API can use.

pip install 'transformers[serving]'
python examples/serve.py runs/coconut-tiny/model --port 8000

`transformers serve` looks for a model's class in the module `transformers`, which is where this script puts ours. All
other options are its own. Seen with transformers 5.24.
"""

from __future__ import annotations

import sys

from transformers.cli.serving import model_manager
from transformers.cli.transformers import main

from mentalese.registry import families, load

if __name__ == "__main__":
    for family in families().values():
        for _, model in family.classes.values():
            setattr(model_manager.transformers, model.partition(":")[2], load(model))
    sys.argv[1:] = ["serve", *sys.argv[1:], "--trust-remote-code"]
    main()
