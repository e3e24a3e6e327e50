"""Run the command as `python -m pufferlib.cli`, where the `puffer` script is not on the path."""

import sys

from pufferlib.cli import main

sys.exit(main())
