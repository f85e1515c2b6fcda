"""`python -m shoal.cli`: the same as `shoal`."""

from shoal.cli.entry import main

main()
