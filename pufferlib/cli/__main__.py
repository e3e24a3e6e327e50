"""`python -m pufferlib.cli`, for environments whose scripts are not on the path."""

import sys

from pufferlib.cli import main

sys.exit(main())
