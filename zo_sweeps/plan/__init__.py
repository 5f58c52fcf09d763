"""A grid -> the trials it stands for, what each needs, and everything that would go wrong. Launches nothing."""
