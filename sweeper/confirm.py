"""What a search measures after it has found the edge."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.errors import Mistake

AGAIN = ("edge", "all", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """`edge`, `all` or `none`, and `audit:K`, which alone includes `edge` and else follows a plus: `none+audit:8`."""

    again: str = "edge"  # points that are measured again: the largest and the failures next to it, the whole edge, none
    audits: int = 0  # implied points that are measured, those nearest to the edge first

    @classmethod
    def parse(cls, text: str) -> Confirm:
        """Raises Mistake."""
        again, _, audit = text.partition("+") if "+" in text else ("", "", text) if ":" in text else (text, "", "")
        points = audit.removeprefix("audit:")
        given = again or "edge"
        is_audit = audit.startswith("audit:") and points.isdecimal() and 0 < int(points) < 10**6
        if given not in AGAIN or (("+" in text or ":" in text) and not is_audit):
            raise Mistake(f"confirm={text}: must be edge, all or none, audit:8, or both, as in all+audit:8")
        return cls(again=given, audits=int(points) if is_audit else 0)
