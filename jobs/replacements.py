"""Where each replacement of a plan stands: staging, begun, ended or dropped. Pure.

A replacement begins when all of its shards are staged, so that old parts go only when the new ones are ready. One that
loses a shard before is dropped whole: the old parts stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .records import Replacement


@dataclass
class _One:
    waiting: set[int]  #: shards not staged yet
    open: set[int]  #: shards that may still be published
    begun: bool = False
    dropped: bool = False
    ended: bool = False


class Replacements:
    """By position in the plan, and by shard."""

    def __init__(self, replacements: Sequence[Replacement]) -> None:
        self._all = [_One(set(each.shards), set(each.shards)) for each in replacements]
        self._of = {shard: one for one, each in zip(self._all, replacements, strict=True) for shard in each.shards}

    @property
    def settled(self) -> bool:
        """None can still begin or end."""
        return all(one.ended or one.dropped for one in self._all)

    def removals(self) -> list[int]:
        """Those without a new shard: they begin at once."""
        return [index for index, one in enumerate(self._all) if not one.waiting]

    def may_publish(self, shard: int) -> bool:
        return shard not in self._of or self._of[shard].begun

    def is_dropped(self, shard: int) -> bool:
        return shard in self._of and self._of[shard].dropped

    def stage(self, shard: int) -> int | None:
        """The replacement that begins now, because this was the last of its shards."""
        one = self._of[shard]
        one.waiting.discard(shard)
        return None if one.waiting else self._all.index(one)

    def unstage(self, shard: int) -> None:
        if shard in self._of:
            self._of[shard].waiting.add(shard)

    def begin(self, replacement: int) -> list[int]:
        """Its shards that may be published now, in order."""
        self._all[replacement].begun = True
        return sorted(self._all[replacement].open)

    def close(self, shard: int) -> None:
        """The shard is done, or given up after its replacement began."""
        if shard in self._of:
            self._of[shard].open.discard(shard)

    def end(self) -> list[int]:
        """Those that have begun and have nothing left to publish; each is told once."""
        found = [i for i, one in enumerate(self._all) if one.begun and not one.open and not one.ended]
        for index in found:
            self._all[index].ended = True
        return found

    def drop(self, shard: int) -> list[int]:
        """The other shards of a replacement that can't begin any more because of this one; none where it has begun."""
        one = self._of.get(shard)
        if one is None or one.begun or one.dropped:
            return []
        one.dropped = True
        return sorted(one.open - {shard})
