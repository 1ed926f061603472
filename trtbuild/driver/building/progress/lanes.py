"""Lanes: the rows of a timeline. Pieces of work that run at the same time have different lanes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Lanes:
    """Gives each piece of work the lowest free lane, so that work in one lane does not overlap.

    `names_in_use` maps each lane in use to the name of its work. `lane_count` is the number of lanes used so far.
    """

    label: str
    names_in_use: dict[int, str] = field(default_factory=dict)
    lane_count: int = 0

    def add(self, name: str) -> int:
        """The lane of a piece of work that begins."""
        lane = next(lane for lane in range(len(self.names_in_use) + 1) if lane not in self.names_in_use)
        self.names_in_use[lane] = name
        self.lane_count = max(self.lane_count, lane + 1)
        return lane

    def remove(self, lane: int) -> None:
        """Free the lane of a piece of work that has ended."""
        self.names_in_use.pop(lane, None)

    def name_of(self, lane: int) -> str:
        """The name of a lane, such as ``worker 1``."""
        return f"{self.label} {lane + 1}"
