"""`python -m shoal`: the same as `shoal`."""

from shoal.cli.entry import main

main()
