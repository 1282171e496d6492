"""One row of prompts in memory: as it is read, or why it is refused."""

from specviz.alignment.prompts import from_values


def only(values):
    (row,) = from_values([values]).rows()
    return row


def refused(values):
    """Why this row is refused beside a good one."""
    prompts = from_values(["good", values])
    assert (prompts.num_rows, prompts.num_refused) == (1, 1)
    (item,) = prompts.refused
    assert item.line == 2
    return item.reason
