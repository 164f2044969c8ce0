"""The one exception that is the user's to mend."""


class UserError(ValueError):
    """Bad input: one line that says what was wrong, where, and what would be right; exit code 2."""
