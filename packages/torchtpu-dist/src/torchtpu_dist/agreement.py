"""Ranks tell each other, through the store, which collective they are about to run.

Every rank posts each collective's fingerprint before it launches it. A rank waits for the others' posts when
this collective has not followed the previous one before; a pair that was agreed on once is launched at once.
Then posts are compared while a launch takes long, and now and then afterwards.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torchtpu.errors import TorchTpuError

RING = 64  # posts that are kept per rank
AUDIT = 16  # launches between two comparisons of what had been agreed before
MANY = 65536  # known pairs of collectives


class CollectiveError(TorchTpuError):
    """Ranks disagree about a collective, or one of them does not come."""


class CollectiveTimeout(CollectiveError, TimeoutError):
    """A collective was not complete within the group's timeout."""


@dataclass(frozen=True)
class Post:
    """One rank's announcement: number in the group, what it is, the user's line, and any further facts."""

    number: int
    what: str
    where: str
    facts: Any = None

    def text(self) -> str:
        """As kept in the store."""
        return json.dumps([self.number, self.what, self.where, self.facts])


def _read(raw: bytes) -> Post:
    return Post(*json.loads(raw))


class Agreement:
    """The posts of one group; ``store`` is this object's own connection."""

    def __init__(self, store: Any, ranks: tuple[int, ...], me: int, trusting: bool) -> None:
        self.store, self.ranks, self.me, self.trusting = store, ranks, me, trusting
        self.others = [r for r in range(len(ranks)) if r != me]
        self.closed = False
        self._known: set[tuple[str, str]] = set()
        self._last = ""
        self._mine: dict[int, Post] = {}

    def announce(self, post: Post, patience: float, must_meet: bool = False) -> list[Any] | None:
        """Post; where the ranks have not agreed on this before, wait for all and compare.

        Returns every rank's facts if ``must_meet``. CollectiveError if the ranks disagree,
        CollectiveTimeout if one has not posted after ``patience`` seconds.
        """
        self.store.set(self._key(post.number, self.me), post.text())
        self._mine[post.number] = post
        self._mine.pop(post.number - RING, None)
        step, self._last = (self._last, post.what), post.what
        if not self.others or (self.trusting and step in self._known and not must_meet):
            if post.number % AUDIT == 0:
                self._audit(post.number)
            return None
        posts = self._meet(post, patience)
        if len(self._known) < MANY:
            self._known.add(step)
        return [posts[r].facts for r in range(len(self.ranks))] if must_meet else None

    def _key(self, number: int, rank: int) -> str:
        return f"post/{number % RING}/{rank}"

    def _meet(self, post: Post, patience: float) -> dict[int, Post]:
        deadline, pause = time.monotonic() + patience, 1e-4
        posts = {self.me: post}
        while True:
            self._collect(post.number, posts)
            self._compare(post, posts)
            if len(posts) == len(self.ranks):
                return posts
            if self.closed:
                raise CollectiveError("torchtpu: the process group was destroyed")
            if time.monotonic() > deadline:
                raise self.late(post, patience, posts)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def _collect(self, number: int, posts: dict[int, Post]) -> None:
        missing = [r for r in self.others if r not in posts]
        for rank, found in zip(missing, self._peek(number, missing), strict=True):
            if found is not None and found.number >= number:
                posts[rank] = found

    def _peek(self, number: int, ranks: list[int]) -> list[Post | None]:
        keys = [self._key(number, r) for r in ranks]
        if keys and self.store.check(keys):
            return [_read(raw) for raw in self.store.multi_get(keys)]
        return [_read(self.store.get(key)) if self.store.check([key]) else None for key in keys]

    def _compare(self, post: Post, posts: dict[int, Post]) -> None:
        for rank, other in sorted(posts.items()):
            if other.number == post.number and other.what != post.what:
                raise CollectiveError(
                    f"torchtpu: ranks disagree about collective {post.number} of their group: "
                    f"rank {self.ranks[self.me]} runs {post.what} at {post.where}, "
                    f"rank {self.ranks[rank]} runs {other.what} at {other.where}"
                )

    def inspect(self, post: Post) -> None:
        """Compare with what the others have posted so far; CollectiveError if it differs."""
        posts: dict[int, Post] = {}
        self._collect(post.number, posts)
        self._compare(post, posts)

    def late(self, post: Post, patience: float, posts: dict[int, Post] | None = None) -> CollectiveTimeout:
        """The error for a collective that was not complete in time; names the ranks that did not come."""
        if posts is None:
            posts = {self.me: post}
            self._collect(post.number, posts)
        missing = ", ".join(str(self.ranks[r]) for r in self.others if r not in posts)
        why = f"rank {missing} did not come to it" if missing else "all ranks came to it"
        return CollectiveTimeout(
            f"torchtpu: {post.what} at {post.where} (collective {post.number} of its group) was not complete "
            f"after {patience:g} s: {why}"
        )

    def _audit(self, number: int) -> None:
        """Compare the last launches, which all ranks have completed."""
        for past in range(max(number - AUDIT, 1), number):
            if past in self._mine:
                self.inspect(self._mine[past])


def own_connection(store: Any, timeout: timedelta) -> Any:
    """A store object of one's own: a blocked one keeps other threads waiting."""
    clone = store.clone()
    clone.set_timeout(timeout)
    return clone
