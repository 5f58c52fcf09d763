"""What is drawn of a sweep: figures, its page, the site of its trials."""
