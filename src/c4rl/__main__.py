"""`python -m c4rl` is the command line."""

import sys

from c4rl.cli.main import main

sys.exit(main())
