"""What is shown of a sweep: tables, figures, data frame, comparison, report, papers."""
