from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.manifests.quantity import Cpu, Gpus, Memory, quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500m", Fraction(1, 2)),
        ("64Gi", 64 * 2**30),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("12.5M", 12_500_000),
        ("2e-3", Fraction(1, 500)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("100u", Fraction(1, 10_000)),
        ("3k", 3000),
        ("+7", 7),
        (8, 8),
        (1.5, Fraction(3, 2)),
        ("131999072Ki", 131999072 * 1024),
    ],
)
def test_quantities_are_exact(text: object, amount: Fraction) -> None:
    assert quantity(text) == amount


@pytest.mark.parametrize("text", ["", "1K", "-1", "1 Gi x", "Gi", "1e", "ten", None, True, [1], "1mm", "nan", "0x10"])
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="quantity"):
        quantity(text)


def test_amounts_round_up() -> None:
    assert Cpu.parse("100u") == Cpu(1)
    assert Memory.parse("1500m") == Memory(2)
    assert Memory.parse("64GiB") == Memory(64 * 2**30)


@pytest.mark.parametrize(("text", "milli"), [("8", 8000), (0.5, 500), ("250m", 250), ("0", 0), ("1", 1000)])
def test_gpus(text: object, milli: int) -> None:
    assert Gpus.parse(text) == Gpus(milli)


@pytest.mark.parametrize("text", ["1.5", "0.0001", "-1", "8Gi8", "x"])
def test_gpus_are_whole_or_a_part_of_one(text: object) -> None:
    with pytest.raises(ValueError, match="a part of one"):
        Gpus.parse(text)


def test_what_no_machine_has_is_refused() -> None:
    with pytest.raises(ValueError, match="memory"):
        Memory.parse("1e300")


@given(st.integers(0, 2**50))
def test_written_amounts_read_back(amount: int) -> None:
    assert Cpu.parse(str(Cpu(amount))) == Cpu(amount)
    assert Memory.parse(str(Memory(amount))) == Memory(amount)
    assert Gpus.parse(str(Gpus(amount % 1000))) == Gpus(amount % 1000)
