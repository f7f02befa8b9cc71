"""The paper's tables: what each row runs, the published figures, and a report of both side by side."""
