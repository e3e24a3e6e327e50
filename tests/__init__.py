"""The tests. This file makes ``tests`` a package, which a package of that name elsewhere on the path cannot hide."""
