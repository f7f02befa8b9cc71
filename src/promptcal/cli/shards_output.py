"""The end of a command that writes shards."""

from promptcal.shards.process import ShardSummary


def describe_shards(summary: ShardSummary) -> str:
    """What was written, in one line, and where unreadable images are listed."""
    done = f"{summary.rows:,} rows were written"
    skipped = f", {summary.skipped:,} of {summary.n_shards:,} shards were finished before" if summary.skipped else ""
    unreadable = f", {summary.unreadable:,} unreadable images are listed in the folder entries"
    folder = summary.folder
    if summary.manifest is not None:
        rows = f"{summary.manifest.rows:,} rows"
        whole = f" All {summary.n_shards:,} shards with {rows} are finished: {folder.manifest_file}."
    else:
        whole = " Other processes have shards to finish; the last one writes the manifest."
    return f"{done}{skipped}{unreadable if summary.unreadable else ''}.{whole}"
