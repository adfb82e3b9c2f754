"""A prefill replica's way out: its NICs move one prompt's cache after the other, and its blocks stay until then."""

from __future__ import annotations

from planner.perf.pool import Handover


class Link:
    """The links of one replica (all ranks of a lock-step group share them), first come, first served."""

    __slots__ = ("free_s", "handover")

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.free_s = 0.0
        """When the last byte handed to it so far will have left."""

    def send(self, done_s: float, prompt_tokens: float) -> float:
        """When the cache of a prompt that is done at `done_s` has arrived: the prefill replica's blocks are free then.

        The link is held for the bytes, not for the rendezvous of the two engines.
        """
        begin = max(done_s, self.free_s)
        took = self.handover.seconds(prompt_tokens)
        self.free_s = begin + took - self.handover.latency_s
        return begin + took
