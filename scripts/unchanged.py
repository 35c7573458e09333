"""Changes that `mutate.py` does not try, because they alter no result.

By module, "" for all: expressions that are looked for in what a change is called, which is its
line, ``|``, and the change from which column of it. Each has its reason.
"""

RULES: dict[str, list[str]] = {
    "": [],
}
