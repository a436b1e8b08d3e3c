"""Verdicts of claims as they are shown: words, tables in the terminal, Markdown, a page, figures."""
