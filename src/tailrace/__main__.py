"""Entry point of ``python -m tailrace``, which runs the command ``tailrace``."""

import sys

from tailrace.cli import main

sys.exit(main())
