"""The entry point of `python -m pufferlib.cli`, for use where the `puffer` script is not on the path."""

import sys

from pufferlib.cli import main

sys.exit(main())
