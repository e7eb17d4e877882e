"""`python -m vla_ros` is `vla-ros`."""

import sys

from vla_ros.cli.main import main

sys.exit(main())
