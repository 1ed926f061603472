"""The GPUs that the CUDA driver lists."""

from __future__ import annotations

from typing import Any

import pytest

from trtbuild.toolchain.libraries import devices

#: The compute capabilities of the fake driver's GPUs.
CAPABILITIES = ((8, 9), (9, 0), (12, 0))


class FakeDriver:
    """A libcuda with three GPUs. The attributes of the GPU with the ordinal `broken` cannot be read."""

    def __init__(self, broken: int | None) -> None:
        self.broken = broken
        self.failures = 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(CAPABILITIES)
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        if device.value == self.broken:
            self.failures += 1
            return 999  # CUDA_ERROR_UNKNOWN
        value._obj.value = CAPABILITIES[device.value][attribute - devices._COMPUTE_CAPABILITY_MAJOR]
        return 0


def device_sms(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver | None) -> tuple[int, ...]:
    monkeypatch.setattr(devices, "_driver", lambda: driver)
    sms: tuple[int, ...] = devices.device_sms.__wrapped__()  # without the cache
    return sms


def test_lists_the_sm_of_each_gpu_by_its_ordinal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_sms(monkeypatch, FakeDriver(None)) == (89, 90, 120)


def test_lists_no_gpu_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_sms(monkeypatch, None) == ()


def test_lists_no_gpu_if_one_cannot_be_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list without the first GPU would give the ordinal 0 to the GPU with SM 90."""
    driver = FakeDriver(broken=0)
    assert device_sms(monkeypatch, driver) == ()
    assert driver.failures == 1
