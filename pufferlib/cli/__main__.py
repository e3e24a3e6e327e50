"""Run the command as `python -m pufferlib.cli`, for installations whose scripts are not on the path."""

import sys

from pufferlib.cli import main

sys.exit(main())
