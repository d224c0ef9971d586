"""The one exception that is the user's to mend: its message is the whole of what is printed."""


class Mistake(Exception):
    """Names the key, the value given, and what would be right. Printed as one line; the command ends with exit 2."""
