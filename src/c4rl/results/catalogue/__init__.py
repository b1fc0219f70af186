"""The tables, declared: which methods on which sets, how long and how often."""

from collections.abc import Iterable

from c4rl.core.errors import InputError
from c4rl.results.catalogue import c4, domains, inside, locomotion, recipe
from c4rl.results.tables import ResultTable

TABLES = {table.name: table for group in (locomotion, c4, inside, recipe, domains) for table in group.TABLES}


def get_table(name: str, others: Iterable[str] = ()) -> ResultTable:
    """others: further names that might have been meant."""
    if name not in TABLES:
        raise InputError(f"table: found '{name}', expected one of {', '.join((*TABLES, *others))}")
    return TABLES[name]
