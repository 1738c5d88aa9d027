"""Results as a table."""


def format_table(rows):
    """Dicts as a Markdown table with aligned columns, one per key; numbers with five digits."""
    names = dict.fromkeys(key for row in rows for key in row)
    columns = []
    for name in names:
        cells = [name, *(format_cell(row.get(name, "")) for row in rows)]
        width = max(map(len, cells))
        cells.insert(1, "-" * width)
        columns.append([cell.ljust(width) for cell in cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns))


def format_cell(value):
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
