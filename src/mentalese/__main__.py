"""`python -m mentalese`."""

import sys

from mentalese.cli import main

if __name__ == "__main__":
    sys.exit(main())
