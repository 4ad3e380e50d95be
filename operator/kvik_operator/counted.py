"""How many there are of something, in words: one pod is not "1 pods". Pure."""


def counted(count: int, what: str) -> str:
    """`1 pod`, `2 pods`, `0 more pods`; `what` is in the singular, and its plural ends in s."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
