"""Run `python -m benchmarks`. Print an error that a user can correct in one line."""

from benchmarks.commands import main

try:
    main(prog_name="python -m benchmarks")
except (ValueError, OSError) as error:
    raise SystemExit(f"Error: {error}") from error
