"""What every table of the schema is made of: the metadata with its names for constraints, and the kinds of columns."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import BigInteger, CheckConstraint, Column, Double, Integer, MetaData, SmallInteger, Text, text

metadata = MetaData(
    naming_convention={
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s",
    }
)
BIG = BigInteger().with_variant(Integer, "sqlite")


def one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IS NULL OR {column} IN ({listed})", name=f"{column}_known")


def big(name: str, default: int | None = 0, nullable: bool = False) -> Column[int]:
    shown = None if default is None else text(str(default))
    return Column(name, BIG, nullable=nullable, server_default=shown)


def flag(name: str) -> Column[int]:
    known = CheckConstraint(f"{name} IN (0, 1)", name=f"{name}_is_flag")
    return Column(name, SmallInteger, known, nullable=False, server_default=text("0"))


def words(name: str, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def moment(name: str, nullable: bool = True) -> Column[float]:
    return Column(name, Double, nullable=nullable)
