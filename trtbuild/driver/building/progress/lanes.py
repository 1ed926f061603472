"""Lanes: the rows of a timeline. Pieces of work that run at the same time have different lanes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Lanes:
    """Gives each piece of work the lowest free lane. `label` is the first word of the lanes' names."""

    label: str
    #: Lane → the name of its work, for the lanes in use.
    work_of_lane: dict[int, str] = field(default_factory=dict)
    #: The number of lanes that were ever in use.
    lane_count: int = 0

    def add(self, name: str) -> int:
        """Take a lane for work that begins."""
        lane = next(lane for lane in range(len(self.work_of_lane) + 1) if lane not in self.work_of_lane)
        self.work_of_lane[lane] = name
        self.lane_count = max(self.lane_count, lane + 1)
        return lane

    def remove(self, lane: int) -> None:
        """Free the lane of work that has ended."""
        self.work_of_lane.pop(lane, None)

    def name_of(self, lane: int) -> str:
        """The name of a lane, such as ``worker 1``."""
        return f"{self.label} {lane + 1}"
