"""The results of a sweep in every form: tables, figures, data frame, comparison, report, papers, trained weights."""
