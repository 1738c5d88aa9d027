"""Results as a table."""


def format_table(rows):
    """Dicts as a Markdown table with aligned columns, one for each key; numbers with five digits."""
    lines = [list(dict.fromkeys(key for row in rows for key in row))]
    for row in rows:
        cells = [row.get(key, "") for key in lines[0]]
        lines.append(
            [
                f"{cell:.5g}" if isinstance(cell, float) else "-" if cell is None else str(cell)
                for cell in cells
            ]
        )
    widths = [max(len(str(cell)) for cell in column) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(str(cell).ljust(width) for cell, width in zip(line, widths))} |"
        for line in lines
    )
