"""PufferLib 1's package ``frameworks``; of its modules, ``cleanrl`` is here."""
